"""Mixtures of each token and the one before it, with a state for each sequence (RWKV).

    in parallel for each stretch of channels, for each row, for each of its tokens t:
        change = x[t - 1] - x[t]            before the row: what the state keeps, less x[t]
        y[p, t] = x[t] + change * factors[p], of each mixture p
        new state = x of the row's last token

Rows come in order: one may read the slot that an earlier one has written.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

L = 8
STRETCH = 32
"""Channels of a task."""
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""
MIXTURES = ("Y0", "Y1", "Y2", "Y3", "Y4", "Y5")


@record(eq=False)
class Given:
    """The arguments of `token_shift`."""

    x: Buffer
    factors: Buffer
    rows: Buffer
    state: Buffer
    out: tuple[Buffer, ...]


@T.inline
def _mix(given, t, at, before, change, p):
    """A mixture of a token, if there is a number p of them."""
    if p < len(given.out):
        given.out[p][t, at] = before + change[lanes_at(0, L)] * given.factors[p, at]


@T.inline
def _one_token(given, t, d, own, before, change):
    """The mixtures of a token, for a vector of channels from d on. own: its place in `before`, the
    channels of the token before it."""
    at = T.meta_var(lanes_at(d, L))
    change[lanes_at(0, L)] = before[own] - given.x[t, at]
    before[own] = given.x[t, at]
    _mix(given, t, at, before[own], change, 0)
    _mix(given, t, at, before[own], change, 1)
    _mix(given, t, at, before[own], change, 2)
    _mix(given, t, at, before[own], change, 3)
    _mix(given, t, at, before[own], change, 4)
    _mix(given, t, at, before[own], change, 5)


@T.inline
def _channels(given, first, r):
    """A stretch of channels of all rows, from channel `first` on. All channels of a token follow
    each other: those of the next token lie far away, often in the same lines of a cache."""
    before = T.alloc_buffer((STRETCH,), "float32")
    change = T.alloc_buffer((L,), "float32")
    for row in T.serial(r):
        for i in T.vectorized(STRETCH):
            before[i] = given.state[given.rows[row, 2], 0, first + i]
        for j in T.serial(given.rows[row, 1]):
            for v in T.unroll(STRETCH // L):
                _one_token(
                    *(given, given.rows[row, 0] + j, first + v * L, lanes_at(v * L, L)),
                    *(before, change),
                )
        for i in T.vectorized(STRETCH):
            given.state[given.rows[row, 3], 0, first + i] = before[i]


@cache
def token_shift(width: int, count: int) -> PrimFunc:
    """Kernel arguments; width is a multiple of 32, and there are up to six mixtures:

    x        float32 [m, width]
    factors  float32 [count, width]
    rows     int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
             another slot to write
    state    float32 [slots, 1, width]: the token before a row
    y        float32 [m, width], of each mixture
    """

    @T.prim_func(private=True, s_tir=True)
    def shift(
        x: T.handle, factors: T.handle, rows: T.handle, state: T.handle, y0: T.handle,
        y1: T.handle, y2: T.handle, y3: T.handle, y4: T.handle, y5: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        F = T.match_buffer(factors, (count, width), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, 1, width), "float32")
        Y0 = T.match_buffer(y0, (m, width), "float32")
        Y1 = T.match_buffer(y1, (m, width), "float32")
        Y2 = T.match_buffer(y2, (m, width), "float32")
        Y3 = T.match_buffer(y3, (m, width), "float32")
        Y4 = T.match_buffer(y4, (m, width), "float32")
        Y5 = T.match_buffer(y5, (m, width), "float32")
        with T.sblock("root"):
            given = T.meta_var(Given(X, F, R, S, (Y0, Y1, Y2, Y3, Y4, Y5)[:count]))
            if m >= MANY:
                for u in T.parallel(width // STRETCH):
                    _channels(given, u * STRETCH, r)
            else:
                for u in T.serial(width // STRETCH):
                    _channels(given, u * STRETCH, r)

    return without(shift, *MIXTURES[count:])
