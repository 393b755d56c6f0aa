"""Recurrences over the tokens of ragged rows, with a state for each head and sequence.

    a block for each head of a row (`state_rows.py`); a warp has some of the head's vectors s of the
    state, a thread every 32nd number of each
        for each token t of the row:

            state space   s = decay * s + dt * x * B;  y = s . C + d * x      `Mamba2Spec`
            delta rule    s = decay * s;  s = s + beta * (v - s . k) * k;  y = s . q
                                                                              `GatedDeltaSpec`

Every token is computed alike, whatever the row that it is in.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.head_states import WARPS, HeadState, ScanShape, sigmoid, softplus
from mlc_llm.kernels.cuda.state_rows import each_row
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, grid
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

_SMALLEST = 1e-6
"""Added to the sum of squares of a head of keys or queries."""


@record(eq=False)
class _Space:
    """A step of a state space."""

    shape: ScanShape
    groups: int
    columns: Buffer
    dt: Buffer
    start: int
    bias: Buffer
    a: Buffer
    d: Buffer
    out: Buffer
    h: Expr
    lane: Expr
    b: Buffer
    c: Buffer
    factors: Buffer
    """Registers: numbers of B and C; decay, dt, and one that is free."""

    def number(self, t: Expr, which: int, i: Expr) -> Expr:
        """Of B (0) or C (1)."""
        group = self.h // (self.shape.heads // self.groups)
        inner = self.shape.heads * self.shape.head_dim
        at = inner + (which * self.groups + group) * self.shape.size
        return self.columns[t, at + i * WARP + self.lane]

    @T.inline
    def find(self, t):
        """b, c and the factors."""
        for i in T.unroll(self.shape.numbers):
            self.b[i] = T.float32(0)
            self.c[i] = T.float32(0)
            if i * WARP + self.lane < self.shape.size:
                self.b[i] = self.number(t, 0, i)
                self.c[i] = self.number(t, 1, i)
        self.factors[0] = self.dt[t, self.start + self.h] + self.bias[self.h]
        self.factors[2] = T.exp(T.float32(0) - T.abs(self.factors[0]))
        self.factors[1] = softplus(self.factors[0], self.factors[2])
        self.factors[0] = T.exp(self.factors[1] * self.a[self.h, 0])

    @T.inline
    def token(self, t, p, s, at):
        """As `HeadState.step` says."""
        total = T.alloc_buffer((2,), "float32", scope="local")
        total[1] = self.columns[t, self.h * self.shape.head_dim + p]
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            s[at + i] = s[at + i] * self.factors[0] + total[1] * self.factors[1] * self.b[i]
            total[0] = total[0] + s[at + i] * self.c[i]
        total[0] = T.cuda.warp_sum(total[0])
        if self.lane == 0:
            self.out[t, self.h * self.shape.head_dim + p] = total[0] + total[1] * self.d[self.h, 0]


@cache
def selective_scan(shape: ScanShape, groups: int, width: int, start: int) -> PrimFunc:
    """heads of one group are neighbours. Kernel arguments:

    mixed    float32 [m, heads * head_dim + 2 * groups * size]: x, B and C
    dt       float32 [m, width], of each head from `start` on
    bias     float32 [heads], added to dt
    a, d     float32 [heads, 1]
    rows     int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
             another slot to write
    state    float32 [slots, heads, head_dim, size], changed in place
    out      float32 [m, heads * head_dim]
    """
    heads, head_dim, size = shape.heads, shape.head_dim, shape.size
    columns = heads * head_dim + 2 * groups * size

    @T.prim_func(private=True)
    def scan(
        mixed: T.handle, dt: T.handle, bias: T.handle, a: T.handle, d: T.handle, rows: T.handle,
        state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        slots = T.int32()
        X = T.match_buffer(mixed, (m, columns), "float32")
        DT = T.match_buffer(dt, (m, width), "float32")
        BIAS = T.match_buffer(bias, (heads,), "float32")
        A = T.match_buffer(a, (heads, 1), "float32")
        D = T.match_buffer(d, (heads, 1), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (slots, heads, head_dim, size), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        row, h = T.cta_id([grid(r), heads])
        lane, warp = T.thread_id([WARP, WARPS])
        b = T.alloc_buffer((shape.numbers,), "float32", scope="local")
        c = T.alloc_buffer((shape.numbers,), "float32", scope="local")
        factors = T.alloc_buffer((3,), "float32", scope="local")
        step = T.meta_var(
            _Space(shape, groups, X, DT, start, BIAS, A, D, O, h, lane, b, c, factors)
        )
        if row < r:
            each_row(HeadState(shape, R, S, h, lane, warp, step), R, r, row, lane)

    return scan


@record(eq=False)
class _Delta:
    """A step of a gated delta rule."""

    shape: ScanShape
    keys: int
    key_head: Expr
    columns: Buffer
    a: Buffer
    a_start: int
    b: Buffer
    b_start: int
    bias: Buffer
    decay: Buffer
    out: Buffer
    h: Expr
    lane: Expr
    q: Buffer
    k: Buffer
    factors: Buffer
    """Registers: numbers of q and k; decay, beta, and one that is free."""

    @T.inline
    def find(self, t):
        """q, k and the factors."""
        self.unit(t, 0, self.q)
        self.unit(t, self.keys, self.k)
        self.factors[0] = self.a[t, self.a_start + self.h] + self.bias[self.h]
        self.factors[2] = T.exp(T.float32(0) - T.abs(self.factors[0]))
        self.factors[1] = softplus(self.factors[0], self.factors[2])
        self.factors[0] = T.exp(self.factors[1] * self.decay[self.h])
        self.factors[1] = sigmoid(self.b[t, self.b_start + self.h])

    @T.inline
    def unit(self, t, start, x):
        """x: the numbers of a head of queries or keys, divided by the size of the head."""
        total = T.alloc_buffer((1,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            x[i] = T.float32(0)
            if i * WARP + self.lane < self.shape.size:
                x[i] = self.columns[
                    t, start + self.key_head * self.shape.size + i * WARP + self.lane
                ]
            total[0] = total[0] + x[i] * x[i]
        total[0] = T.sqrt(T.cuda.warp_sum(total[0]) + T.float32(_SMALLEST))
        for i in T.unroll(self.shape.numbers):
            x[i] = x[i] / total[0]

    @T.inline
    def token(self, t, p, s, at):
        """As `HeadState.step` says."""
        total = T.alloc_buffer((2,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            s[at + i] = s[at + i] * self.factors[0]
            total[0] = total[0] + s[at + i] * self.k[i]
        total[1] = self.columns[t, 2 * self.keys + self.h * self.shape.head_dim + p]
        total[1] = (total[1] - T.cuda.warp_sum(total[0])) * self.factors[1]
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            s[at + i] = s[at + i] + total[1] * self.k[i]
            total[0] = total[0] + s[at + i] * self.q[i]
        total[0] = T.cuda.warp_sum(total[0])
        if self.lane == 0:
            self.out[t, self.h * self.shape.head_dim + p] = total[0] * T.float32(
                self.shape.size**-0.5
            )


@record()
class DeltaShape:
    """a, b: how many columns their tensor has, and the first of them."""

    key_heads: int
    scan: ScanShape
    in_turn: bool
    a: tuple[int, int]
    b: tuple[int, int]


@cache
def delta_scan(shape: DeltaShape) -> PrimFunc:
    """Kernel arguments:

    mixed    float32 [m, 2 * key_heads * size + heads * head_dim]: q, k and v
    a, b     float32 [m, columns]
    bias     float32 [heads], added to a
    decay    float32 [heads]
    rows     int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
             another slot to write
    state    float32 [slots, heads, head_dim, size], changed in place
    out      float32 [m, heads * head_dim]
    """
    scan, key_heads = shape.scan, shape.key_heads
    heads, head_dim, size = scan.heads, scan.head_dim, scan.size
    keys = key_heads * size

    @T.prim_func(private=True)
    def delta(
        mixed: T.handle, a: T.handle, b: T.handle, bias: T.handle, decay: T.handle, rows: T.handle,
        state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        slots = T.int32()
        X = T.match_buffer(mixed, (m, 2 * keys + heads * head_dim), "float32")
        A = T.match_buffer(a, (m, shape.a[0]), "float32")
        B = T.match_buffer(b, (m, shape.b[0]), "float32")
        BIAS = T.match_buffer(bias, (heads,), "float32")
        DECAY = T.match_buffer(decay, (heads,), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (slots, heads, head_dim, size), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        row, h = T.cta_id([grid(r), heads])
        lane, warp = T.thread_id([WARP, WARPS])
        q = T.alloc_buffer((scan.numbers,), "float32", scope="local")
        k = T.alloc_buffer((scan.numbers,), "float32", scope="local")
        factors = T.alloc_buffer((3,), "float32", scope="local")
        key_head = T.meta_var(h % key_heads if shape.in_turn else h // (heads // key_heads))
        step = T.meta_var(
            _Delta(
                scan, keys, key_head, X, A, shape.a[1], B, shape.b[1], BIAS, DECAY, O, h, lane,
                q, k, factors,
            )
        )  # fmt: skip
        if row < r:
            each_row(HeadState(scan, R, S, h, lane, warp, step), R, r, row, lane)

    return delta
