"""Mixtures of each token and the one before it, with a state for each sequence (RWKV).

a thread for each channel d of a row (`state_rows.py`):
    for each token t of the row:
        change = x[t - 1, d] - x[t, d]      before the row: what the state keeps, less x[t, d]
        y[p, t, d] = x[t, d] + change * factors[p, d], of each mixture p
    new state = x of the row's last token
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.state_rows import each_row
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, grid
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

THREADS = 128
MIXTURES = ("Y0", "Y1", "Y2", "Y3", "Y4", "Y5")


@record(eq=False)
class _Channel:
    """Statements for one channel of a block."""

    width: int
    x: Buffer
    factors: Buffer
    rows: Buffer
    state: Buffer
    out: tuple[Buffer, ...]
    d: Expr

    @T.inline
    def mix(self, t, now, p):
        """A mixture of a token, if there is a number p of them."""
        if p < len(self.out):
            self.out[p][t, self.d] = now[0] + now[1] * self.factors[p, self.d]

    @T.inline
    def row(self, row):
        """All tokens of a row. now: the token's number, and what that before it has more."""
        now = T.alloc_buffer((2,), "float32", scope="local")
        if self.d < self.width:
            now[0] = self.state[self.rows[row, 2], 0, self.d]
            for i in T.serial(self.rows[row, 1]):
                t: T.let[T.int32] = self.rows[row, 0] + i
                now[1] = now[0] - self.x[t, self.d]
                now[0] = self.x[t, self.d]
                self.mix(t, now, 0)
                self.mix(t, now, 1)
                self.mix(t, now, 2)
                self.mix(t, now, 3)
                self.mix(t, now, 4)
                self.mix(t, now, 5)
            self.state[self.rows[row, 3], 0, self.d] = now[0]


@cache
def token_shift(width: int, count: int) -> PrimFunc:
    """Kernel arguments; there are up to six mixtures:

    x        float32 [m, width]
    factors  float32 [count, width]
    rows     int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
             another slot to write
    state    float32 [slots, 1, width]: the token before a row; changed in place
    y        float32 [m, width], of each mixture
    """

    @T.prim_func(private=True)
    def shift(
        x: T.handle, factors: T.handle, rows: T.handle, state: T.handle, y0: T.handle,
        y1: T.handle, y2: T.handle, y3: T.handle, y4: T.handle, y5: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        slots = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        F = T.match_buffer(factors, (count, width), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (slots, 1, width), "float32")
        Y0 = T.match_buffer(y0, (m, width), "float32")
        Y1 = T.match_buffer(y1, (m, width), "float32")
        Y2 = T.match_buffer(y2, (m, width), "float32")
        Y3 = T.match_buffer(y3, (m, width), "float32")
        Y4 = T.match_buffer(y4, (m, width), "float32")
        Y5 = T.match_buffer(y5, (m, width), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 4})
        row, block = T.cta_id([grid(r), -(-width // THREADS)])
        thread = T.thread_id([THREADS])
        channel = T.meta_var(
            _Channel(width, X, F, R, S, (Y0, Y1, Y2, Y3, Y4, Y5)[:count], block * THREADS + thread)
        )
        if row < r:
            each_row(channel, R, r, row, thread % WARP)

    return without(shift, *MIXTURES[count:])
