"""What all heads of values that share a head of keys read of a chunk (`chunks.py`).

In parallel for each head of keys, for each row:
    for each token t of the row, for each token s of its chunk up to t:
        dots[t, s] = k_s . x_t, for each of the vectors x of t
    new slot = keys of the row's last chunk

Rows come in order: one may read the slot that an earlier one has written. This is over before a
head of values reads any.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.chunks import place
from mlc_llm.kernels.cpu.vectors import fsplat, halved_sum, lanes_at
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import CHUNK
from mlc_llm.record import record

MANY = 4
"""Tokens from which on a second thread is worth its wake-up."""


@record(eq=False)
class KeyHeads:
    """The arguments of a kernel that keeps keys."""

    rows: Buffer
    """`state_rows` (`library/signatures.py`)."""
    keys: Buffer
    """[slots, key heads, CHUNK, size], changed in place."""
    dots: Buffer
    """[m, key heads, reads, CHUNK]."""
    step: Any
    """find(t, k): makes the vectors of head k of a token. key(t, k, i, lanes): numbers of its key.
    x(t, k, which, i, lanes): of a vector that the state is multiplied with."""

    @property
    def size(self) -> int:
        """Of a key."""
        return int(self.keys.shape[3])

    @property
    def lanes(self) -> int:
        return gcd(self.size, 16)


@T.inline
def _dots(heads, t, k, at, own, total):
    """Of a token, which lies at a place of its chunk. own: the chunk's keys."""
    lanes = T.meta_var(heads.lanes)
    lane = T.meta_var(lanes_at(0, lanes))
    for which in T.unroll(heads.dots.shape[2]):
        for s in T.serial(at + 1):
            total[lane] = fsplat(0.0, lanes)
            for v in T.unroll(heads.size // lanes):
                total[lane] = total[lane] + own[s, lanes_at(v * lanes, lanes)] * heads.step.x(
                    t, k, which, v * lanes, lanes
                )
            heads.dots[t, k, which, s] = halved_sum(total[lane], lanes)


@T.inline
def _head(heads, k, r):
    """A head of keys of all rows."""
    own = T.alloc_buffer((CHUNK, heads.size), "float32")
    total = T.alloc_buffer((heads.lanes,), "float32")
    for row in T.serial(r):
        for s in T.serial(place(heads.rows, row)):
            for i in T.vectorized(heads.size):
                own[s, i] = heads.keys[heads.rows[row, 2], k, s, i]
        for j in T.serial(heads.rows[row, 1]):
            t = T.meta_var(heads.rows[row, 0] + j)
            at = T.meta_var((place(heads.rows, row) + j) % CHUNK)
            heads.step.find(t, k)
            for v in T.unroll(heads.size // heads.lanes):
                own[at, lanes_at(v * heads.lanes, heads.lanes)] = heads.step.key(
                    t, k, v * heads.lanes, heads.lanes
                )
            _dots(heads, t, k, at, own, total)
        for s in T.serial((place(heads.rows, row) + heads.rows[row, 1]) % CHUNK):
            for i in T.vectorized(heads.size):
                heads.keys[heads.rows[row, 3], k, s, i] = own[s, i]


@T.inline
def each_key_head(heads, m, r):
    """All of them."""
    if m >= MANY:
        for k in T.parallel(heads.keys.shape[1]):
            _head(heads, k, r)
    else:
        for k in T.serial(heads.keys.shape[1]):
            _head(heads, k, r)
