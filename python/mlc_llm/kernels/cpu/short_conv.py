"""A gated short convolution over ragged rows, with a state for each sequence (LFM2).

    in parallel for each stretch of channels d, for each row:
        taps = weights, a vector for each of the kernel's tokens
        for each token t of the row:
            out[t, d] = c[t, d] * sum over j of taps[j, d] * value(t - (kernel - 1) + j, d)
        for each of the last kernel - 1 tokens p:  new state[p, d] = value(p, d)

value(t): b[t] * u[t] of a token of the row, what the state keeps of a token before it.

A token's sum is taken in the order of j, whatever the row that it is in. Rows come in order: one
may read the slot that an earlier one has written.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

L = 8
STRETCH = 32
"""Channels of a task."""
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@record(eq=False)
class Given:
    """The arguments of `short_conv`, and the number of channels."""

    thirds: Buffer
    weight: Buffer
    rows: Buffer
    state: Buffer
    out: Buffer
    width: int

    @property
    def kept(self) -> int:
        """Tokens that a state keeps."""
        return int(self.weight.shape[1]) - 1


@T.inline
def _load(given, row, t, d, value):
    """value: a vector of channels from d on, of token t of a row; before 0 lies the state."""
    lane = T.meta_var(lanes_at(0, L))
    if t < 0:
        value[lane] = given.state[given.rows[row, 2], t + given.kept, lanes_at(d, L)]
    else:
        value[lane] = (
            given.thirds[given.rows[row, 0] + t, lanes_at(d, L)]
            * given.thirds[given.rows[row, 0] + t, lanes_at(2 * given.width + d, L)]
        )


@T.inline
def _convolve(given, row, d, taps, total, value):
    """The results of a row, for a vector of channels from d on."""
    lane = T.meta_var(lanes_at(0, L))
    for j in T.unroll(given.kept + 1):
        for i in T.unroll(L):
            taps[j, i] = given.weight[d + i, j]
    for t in T.serial(given.rows[row, 1]):
        total[lane] = fsplat(0.0, L)
        for j in T.unroll(given.kept + 1):
            _load(given, row, t + j - given.kept, d, value)
            total[lane] = total[lane] + taps[j, lane] * value[lane]
        given.out[given.rows[row, 0] + t, lanes_at(d, L)] = (
            total[lane] * given.thirds[given.rows[row, 0] + t, lanes_at(given.width + d, L)]
        )


@T.inline
def _one_task(given, row, stretch):
    """A stretch of channels of a row, and what its new state keeps."""
    taps = T.alloc_buffer((given.kept + 1, L), "float32")
    total = T.alloc_buffer((L,), "float32")
    value = T.alloc_buffer((L,), "float32")
    for v in T.serial(STRETCH // L):
        d = T.meta_var(stretch * STRETCH + v * L)
        _convolve(given, row, d, taps, total, value)
        for p in T.serial(given.kept):
            _load(given, row, given.rows[row, 1] + p - given.kept, d, value)
            given.state[given.rows[row, 3], p, lanes_at(d, L)] = value[lanes_at(0, L)]


@cache
def short_conv(width: int, kernel: int) -> PrimFunc:
    """Kernel arguments; width is a multiple of 32:

    thirds  float32 [m, 3 * width]: b, c and u of each token
    weight  float32 [width, kernel]: the newest token's last
    rows    int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
            another slot to write;
            a later row may read what an earlier one has written
    state   float32 [slots, kernel - 1, width]: what comes before a row, the oldest first; the slot
            to write gets what comes before the next row
    out     float32 [m, width]
    """
    stretches = width // STRETCH

    @T.prim_func(private=True, s_tir=True)
    def convolution(
        thirds: T.handle, weight: T.handle, rows: T.handle, state: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(thirds, (m, 3 * width), "float32")
        W = T.match_buffer(weight, (width, kernel), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, kernel - 1, width), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        with T.sblock("root"):
            given = T.meta_var(Given(X, W, R, S, O, width))
            if m >= MANY:
                for u in T.parallel(stretches):
                    for row in T.serial(r):
                        _one_task(given, row, u)
            else:
                for u in T.serial(r * stretches):
                    _one_task(given, u // stretches, u % stretches)

    return convolution
