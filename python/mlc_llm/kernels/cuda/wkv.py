"""Time mixing of RWKV-7 over ragged rows, with a state for each sequence (`models/recurrent.py`).

    wkv_scan    a block for each head of a row (`state_rows.py`), for each token of the row:
        w, k, u and rate of the head, from what the matrices give
        of each value v of the head, s being its vector of the state:
            s = w * s - (rate * u) (s . u) + k * v;  o = s . r

    wkv_finish  a block for each head of a token:
        o = (norm(o) * weight + bias + (r * k . r_k) v) * g

The state lies by value, then by key: a sum over keys is one of a warp, and nothing else reads it.
Every token is computed alike, whatever the row that it is in.
"""

from __future__ import annotations

import math
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.head_states import WARPS, HeadState, ScanShape, sigmoid
from mlc_llm.kernels.cuda.state_rows import each_row
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, block_sum, grid
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

DECAY, UNIT, RATE, KEY, QUERY = range(5)
_SMALLEST = 1e-12
"""Least length that a vector is divided by."""
OF_OTHERS = ("B", "FIRST", "V0")
"""Arguments that the first layer does not have."""


@record(eq=False)
class _Mixed:
    """What a column of a token has, from what the matrices give. b, first and v0: None in the first
    layer."""

    k: Buffer
    v: Buffer
    a: Buffer
    b: Buffer | None
    first: Buffer | None
    a0: Buffer
    v0: Buffer | None
    k_a: Buffer

    def rate(self, t: Expr, at: Expr) -> Expr:
        return sigmoid(self.a[t, at] + self.a0[at])

    def key(self, t: Expr, at: Expr, rate: Expr) -> Expr:
        return self.k[t, at] * ((rate - T.float32(1)) * self.k_a[at] + T.float32(1))

    def value(self, t: Expr, at: Expr) -> Expr:
        own = self.v[t, at]
        if self.first is None or self.b is None or self.v0 is None:
            return own
        return own + (self.first[t, at] - own) * sigmoid(self.b[t, at] + self.v0[at])


@record(eq=False)
class _Step:
    """A step of `wkv_scan`."""

    shape: ScanShape
    mixed: _Mixed
    r: Buffer
    w: Buffer
    w0: Buffer
    k_k: Buffer
    out: Buffer
    h: Expr
    lane: Expr
    of: Buffer
    """Registers, from DECAY to QUERY: numbers of the head of a token."""

    @T.inline
    def find(self, t):
        """All numbers of the head that every value reads; 0 behind the last one."""
        total = T.alloc_buffer((1,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            at: T.let[T.int32] = self.h * self.shape.size + i * WARP + self.lane
            self.of[DECAY, i] = T.float32(0)
            self.of[UNIT, i] = T.float32(0)
            self.of[RATE, i] = T.float32(0)
            self.of[KEY, i] = T.float32(0)
            self.of[QUERY, i] = T.float32(0)
            if i * WARP + self.lane < self.shape.size:
                self.of[DECAY, i] = T.exp(
                    sigmoid(self.w[t, at] + self.w0[at]) * T.float32(-math.exp(-0.5))
                )
                self.of[UNIT, i] = self.mixed.k[t, at] * self.k_k[at]
                self.of[RATE, i] = self.mixed.rate(t, at)
                self.of[KEY, i] = self.mixed.key(t, at, self.of[RATE, i])
                self.of[QUERY, i] = self.r[t, at]
            total[0] = total[0] + self.of[UNIT, i] * self.of[UNIT, i]
        total[0] = T.float32(1) / T.max(T.sqrt(T.cuda.warp_sum(total[0])), T.float32(_SMALLEST))
        for i in T.unroll(self.shape.numbers):
            self.of[UNIT, i] = self.of[UNIT, i] * total[0]
            self.of[RATE, i] = self.of[RATE, i] * self.of[UNIT, i]

    @T.inline
    def token(self, t, p, s, at):
        """As `HeadState.step` says."""
        total = T.alloc_buffer((3,), "float32", scope="local")
        column = T.meta_var(self.h * self.shape.head_dim + p)
        total[0] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            total[0] = total[0] + s[at + i] * self.of[UNIT, i]
        total[0] = T.cuda.warp_sum(total[0])
        total[1] = self.mixed.value(t, column)
        total[2] = T.float32(0)
        for i in T.unroll(self.shape.numbers):
            s[at + i] = (
                s[at + i] * self.of[DECAY, i]
                - total[0] * self.of[RATE, i]
                + total[1] * self.of[KEY, i]
            )
            total[2] = total[2] + s[at + i] * self.of[QUERY, i]
        total[2] = T.cuda.warp_sum(total[2])
        if self.lane == 0:
            self.out[t, column] = total[2]


@cache
def wkv_scan(heads: int, size: int, *, is_first: bool) -> PrimFunc:
    """Kernel arguments:

    r, w, k, v, a      float32 [m, heads * size]: what the matrices give
    b, first           the same; the first layer has none
    w0, a0, v0         float32 [heads * size]; the first layer has no v0
    k_k, k_a           the same
    rows               int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
                       another slot to write
    state              float32 [slots, heads, size, size], by value, then by key; changed in place
    out                float32 [m, heads * size]: o
    """
    width, shape = heads * size, ScanShape(heads, size, size)

    @T.prim_func(private=True)
    def scan(
        r: T.handle, w: T.handle, k: T.handle, v: T.handle, a: T.handle, b: T.handle,
        first: T.handle, w0: T.handle, a0: T.handle, v0: T.handle, k_k: T.handle, k_a: T.handle,
        rows: T.handle, state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        count = T.int32()
        slots = T.int32()
        R = T.match_buffer(r, (m, width), "float32")
        W = T.match_buffer(w, (m, width), "float32")
        K = T.match_buffer(k, (m, width), "float32")
        V = T.match_buffer(v, (m, width), "float32")
        A = T.match_buffer(a, (m, width), "float32")
        B = T.match_buffer(b, (m, width), "float32")
        FIRST = T.match_buffer(first, (m, width), "float32")
        W0 = T.match_buffer(w0, (width,), "float32")
        A0 = T.match_buffer(a0, (width,), "float32")
        V0 = T.match_buffer(v0, (width,), "float32")
        KK = T.match_buffer(k_k, (width,), "float32")
        KA = T.match_buffer(k_a, (width,), "float32")
        ROWS = T.match_buffer(rows, (count, STATE_ROW), "int32")
        S = T.match_buffer(state, (slots, heads, size, size), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        row, h = T.cta_id([grid(count), heads])
        lane, warp = T.thread_id([WARP, WARPS])
        of = T.alloc_buffer((5, shape.numbers), "float32", scope="local")
        given = T.meta_var((None, None, None) if is_first else (B, FIRST, V0))
        mixed = T.meta_var(_Mixed(K, V, A, given[0], given[1], A0, given[2], KA))
        step = T.meta_var(_Step(shape, mixed, R, W, W0, KK, O, h, lane, of))
        if row < count:
            each_row(HeadState(shape, ROWS, S, h, lane, warp, step), ROWS, count, row, lane)

    return without(scan, *(OF_OTHERS if is_first else ()))


@record(eq=False)
class _Last:
    """Statements of `wkv_finish`, for a head of a token."""

    size: int
    eps: float
    mixed: _Mixed
    r: Buffer
    r_k: Buffer
    norm: Buffer
    bias: Buffer
    g: Buffer
    scratch: Buffer
    thread: Expr

    @T.inline
    def head(self, O, t, start):
        """The columns of O from `start` on, in place."""
        threads = T.meta_var(block_size(self.size))
        turns, warps = T.meta_var(-(-self.size // threads)), T.meta_var(threads // WARP)
        x = T.alloc_buffer((turns,), "float32", scope="local")
        own = T.alloc_buffer((1,), "float32", scope="local")
        mean = T.alloc_buffer((1,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        own[0] = T.float32(0)
        mean[0] = T.float32(0)
        for i in T.unroll(turns):
            at = T.meta_var(start + i * threads + self.thread)
            x[i] = T.float32(0)
            if i * threads + self.thread < self.size:
                x[i] = O[t, at]
                own[0] = own[0] + self.r[t, at] * self.r_k[at] * self.mixed.key(
                    t, at, self.mixed.rate(t, at)
                )
            mean[0] = mean[0] + x[i]
        block_sum(own, self.thread, warps, self.scratch)
        block_sum(mean, self.thread, warps, self.scratch)
        total[0] = T.float32(0)
        for i in T.unroll(turns):
            if i * threads + self.thread < self.size:
                x[i] = x[i] - mean[0] / T.float32(self.size)
                total[0] = total[0] + x[i] * x[i]
        block_sum(total, self.thread, warps, self.scratch)
        total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(self.size) + T.float32(self.eps))
        for i in T.unroll(turns):
            at = T.meta_var(start + i * threads + self.thread)
            if i * threads + self.thread < self.size:
                O[t, at] = (
                    x[i] * total[0] * self.norm[at]
                    + self.bias[at]
                    + own[0] * self.mixed.value(t, at)
                ) * self.g[t, at]


@cache
def wkv_finish(heads: int, size: int, eps: float, *, is_first: bool) -> PrimFunc:
    """Kernel arguments:

    r, k, v, a, g      float32 [m, heads * size]: what the matrices give
    b, first           the same; the first layer has none
    a0, v0, k_a, r_k   float32 [heads * size]; the first layer has no v0
    norm, norm_bias    the same; eps is added to the variance of a head
    o                  float32 [m, heads * size], changed in place
    """
    width, threads = heads * size, block_size(size)

    @T.prim_func(private=True)
    def finish(
        r: T.handle, k: T.handle, v: T.handle, a: T.handle, g: T.handle, b: T.handle,
        first: T.handle, a0: T.handle, v0: T.handle, k_a: T.handle, r_k: T.handle,
        norm: T.handle, norm_bias: T.handle, o: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        R = T.match_buffer(r, (m, width), "float32")
        K = T.match_buffer(k, (m, width), "float32")
        V = T.match_buffer(v, (m, width), "float32")
        A = T.match_buffer(a, (m, width), "float32")
        G = T.match_buffer(g, (m, width), "float32")
        B = T.match_buffer(b, (m, width), "float32")
        FIRST = T.match_buffer(first, (m, width), "float32")
        A0 = T.match_buffer(a0, (width,), "float32")
        V0 = T.match_buffer(v0, (width,), "float32")
        KA = T.match_buffer(k_a, (width,), "float32")
        RK = T.match_buffer(r_k, (width,), "float32")
        NORM = T.match_buffer(norm, (width,), "float32")
        BIAS = T.match_buffer(norm_bias, (width,), "float32")
        O = T.match_buffer(o, (m, width), "float32")
        T.device_entry()
        row, h = T.cta_id([grid(m), heads])
        thread = T.thread_id([threads])
        scratch = T.alloc_buffer((threads // WARP,), "float32", scope="shared")
        given = T.meta_var((None, None, None) if is_first else (B, FIRST, V0))
        mixed = T.meta_var(_Mixed(K, V, A, given[0], given[1], A0, given[2], KA))
        last = T.meta_var(_Last(size, eps, mixed, R, RK, NORM, BIAS, G, scratch, thread))
        if row < m:
            last.head(O, row, h * size)

    return without(finish, *(OF_OTHERS if is_first else ()))
