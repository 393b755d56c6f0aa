"""A causal convolution over ragged rows and SiLU, with a state for each sequence.

In parallel for each stretch of channels, for each row:
    out[t, d] = silu(bias[d] + sum over j of weight[d, j] * value(t - (kernel - 1) + j, d))
    new state[p, d] = value(p, d) for each of the last kernel - 1 tokens p

value(t): an input, or what the state keeps of a token before the row. Rows come in order: one may
read the slot that an earlier one has written.
"""

from __future__ import annotations

from functools import cache
from math import gcd

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.input_kinds import silu
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

L = 8
STRETCH = 32
"""Channels of a task, at most."""
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@record(eq=False)
class Given:
    """The arguments of `conv_silu`, and the column of the first channel."""

    x: Buffer
    weight: Buffer
    bias: Buffer | None
    rows: Buffer
    state: Buffer
    out: Buffer
    start: int

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
        value[lane] = given.x[given.rows[row, 0] + t, lanes_at(given.start + d, L)]


@T.inline
def _convolve(given, row, t, d, taps, v, total, value):
    """The result of token t of a row, for a vector of channels from d on: number v of its task."""
    lane, own = T.meta_var((lanes_at(0, L), lanes_at(v * L, L)))
    total[lane] = fsplat(0.0, L)
    for j in T.unroll(given.kept + 1):
        _load(given, row, t + j - given.kept, d, value)
        total[lane] = total[lane] + taps[j, own] * value[lane]
    if given.bias is not None:
        total[lane] = total[lane] + given.bias[lanes_at(d, L)]
    given.out[given.rows[row, 0] + t, lanes_at(d, L)] = silu(total[lane], L)


@T.inline
def _channels(given, stretch, first, r):
    """A stretch of channels of all rows, from channel `first` on. All channels of a token follow
    each other: those of the next token lie far away, often in the same lines of a cache."""
    taps = T.alloc_buffer((given.kept + 1, stretch), "float32")
    total = T.alloc_buffer((L,), "float32")
    value = T.alloc_buffer((L,), "float32")
    for j in T.unroll(given.kept + 1):
        for i in T.serial(stretch):
            taps[j, i] = given.weight[first + i, j]
    for row in T.serial(r):
        for t in T.serial(given.rows[row, 1]):
            for v in T.unroll(stretch // L):
                _convolve(given, row, t, first + v * L, taps, v, total, value)
        for p in T.serial(given.kept):
            for v in T.unroll(stretch // L):
                d = T.meta_var(first + v * L)
                _load(given, row, given.rows[row, 1] + p - given.kept, d, value)
                given.state[given.rows[row, 3], p, lanes_at(d, L)] = value[lanes_at(0, L)]


@T.inline
def _all_channels(given, width, m, r):
    """All rows, by stretches of channels."""
    stretch = T.meta_var(gcd(width, STRETCH))
    if m >= MANY:
        for u in T.parallel(width // stretch):
            _channels(given, stretch, u * stretch, r)
    else:
        for u in T.serial(width // stretch):
            _channels(given, stretch, u * stretch, r)


@cache
def conv_silu(width: int, kernel: int, columns: int, start: int, *, has_bias: bool) -> PrimFunc:
    """Kernel arguments; width is a multiple of 16, start of 8:

    x       float32 [m, columns]: the channels are the `width` columns from `start` on
    weight  float32 [width, kernel]: the newest token's last
    bias    float32 [width]; there is none unless `has_bias`
    rows    int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
            another slot to write
    state   float32 [slots, kernel - 1, width]: what comes before a row, the oldest first
    out     float32 [m, width]
    """

    @T.prim_func(private=True, s_tir=True)
    def convolution(
        x: T.handle, weight: T.handle, bias: T.handle, rows: T.handle, state: T.handle,
        out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, columns), "float32")
        W = T.match_buffer(weight, (width, kernel), "float32")
        B = T.match_buffer(bias, (width,), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, kernel - 1, width), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        with T.sblock("root"):
            given = T.meta_var(Given(X, W, B if has_bias else None, R, S, O, start))
            _all_channels(given, width, m, r)

    return convolution if has_bias else without(convolution, "B")
