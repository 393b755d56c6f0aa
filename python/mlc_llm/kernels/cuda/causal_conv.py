"""Short causal convolutions over ragged rows, with a state for each sequence.

    a thread for each channel d of a row (`state_rows.py`):
        for each token t of the row:
            total = sum over j of weight[d, j] * value(t - (kernel - 1) + j)
            out[t, d] = what becomes of it
        new state = the last kernel - 1 values

    gated   value = b * u, out = c * total     b, c and u: the thirds of a row
    silu    value = x,     out = silu(total + bias)

What comes before the row is in the state. A token's sum is taken in the order of j, whatever the
row that it is in.
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


@record()
class ConvShape:
    """channels: how many, of rows with `columns` numbers, of which they begin with `start`; all of
    them if it is gated."""

    channels: int
    kernel: int
    columns: int
    start: int = 0
    is_gated: bool = False
    has_bias: bool = False


@record(eq=False)
class _Channel:
    """Statements for one channel of a block."""

    shape: ConvShape
    x: Buffer
    weight: Buffer
    bias: Buffer
    rows: Buffer
    state: Buffer
    out: Buffer
    d: Expr

    def value(self, t: Expr) -> Expr:
        """Of a token."""
        if not self.shape.is_gated:
            return self.x[t, self.shape.start + self.d]
        return self.x[t, self.d] * self.x[t, 2 * self.shape.channels + self.d]

    def result(self, t: Expr, total: Expr) -> Expr:
        """What becomes of a sum."""
        if self.shape.is_gated:
            return total * self.x[t, self.shape.channels + self.d]
        x = total + self.bias[self.d] if self.shape.has_bias else total
        return x / (T.float32(1) + T.exp(T.min(T.float32(0) - x, T.float32(87))))

    @T.inline
    def row(self, row):
        """All tokens of a row."""
        kept = T.meta_var(self.shape.kernel - 1)
        near = T.alloc_buffer((max(kept, 1),), "float32", scope="local")
        now = T.alloc_buffer((2,), "float32", scope="local")
        if self.d < self.shape.channels:
            for j in T.unroll(kept):
                near[j] = self.state[self.rows[row, 2], j, self.d]
            for i in T.serial(self.rows[row, 1]):
                t: T.let[T.int32] = self.rows[row, 0] + i
                now[0] = self.value(t)
                now[1] = T.float32(0)
                for j in T.unroll(kept):
                    now[1] = now[1] + self.weight[self.d, j] * near[j]
                now[1] = now[1] + self.weight[self.d, kept] * now[0]
                self.out[t, self.d] = self.result(t, now[1])
                for j in T.unroll(kept - 1):
                    near[j] = near[j + 1]
                near[max(kept - 1, 0)] = now[0]
            for j in T.unroll(kept):
                self.state[self.rows[row, 3], j, self.d] = near[j]


@cache
def causal_conv(shape: ConvShape) -> PrimFunc:
    """Kernel arguments:

    x       float32 [m, columns]
    weight  float32 [channels, kernel], the newest token's last
    bias    float32 [channels], if it has one
    rows    int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
            another slot to write
    state   float32 [slots, kernel - 1, channels], the oldest token first; changed in place
    out     float32 [m, channels]
    """
    channels, kernel = shape.channels, shape.kernel

    @T.prim_func(private=True)
    def convolve(
        x: T.handle,
        weight: T.handle,
        bias: T.handle,
        rows: T.handle,
        state: T.handle,
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        slots = T.int32()
        X = T.match_buffer(x, (m, shape.columns), "float32")
        W = T.match_buffer(weight, (channels, kernel), "float32")
        BIAS = T.match_buffer(bias, (channels,), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (slots, kernel - 1, channels), "float32")
        O = T.match_buffer(out, (m, channels), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 4})
        row, block = T.cta_id([grid(r), -(-channels // THREADS)])
        thread = T.thread_id([THREADS])
        channel = T.meta_var(_Channel(shape, X, W, BIAS, R, S, O, block * THREADS + thread))
        if row < r:
            each_row(channel, R, r, row, thread % WARP)

    return convolve if shape.has_bias else without(convolve, "BIAS")
