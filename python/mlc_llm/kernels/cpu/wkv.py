"""Time mixing of RWKV-7 over ragged rows, with a state for each sequence (`models/recurrent.py`).

In parallel for each head, for each row:
    h = old state
    for each token t:                   prompts and decoding alike, so a token's bits are the same
        w, k, u, rate and value of the head, from what the matrices give
        seen = u h
        h = w * h - (rate * u) seen + k value^T;  o = r h
        out[t] = (norm(o) + (r * k . r_k) value) * g
    new state = h

A state has a row for each number of a key, so that the numbers of a value are in lanes and no sum
goes across them. Rows come in order: one may read the slot that an earlier one has written.
"""

from __future__ import annotations

import math
from functools import cache
from math import gcd

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.chunks import LARGE
from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    SCHEDULED,
    exp2,
    fsplat,
    halved_sum,
    lanes_at,
    splat,
    tanh,
)
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

DECAY, RATE, UNIT, KEY, VALUE = range(5)
"""Rows of a task's memory: numbers of a head of one token."""
SMALLEST = 1e-12
"""Least length that a vector is divided by."""


@record(eq=False)
class Wkv:
    """The arguments of `wkv`, the size of a head, lanes of a vector, and what is added to its
    variance."""

    r: Buffer
    w: Buffer
    k: Buffer
    v: Buffer
    a: Buffer
    g: Buffer
    b: Buffer | None
    first: Buffer | None
    w0: Buffer
    a0: Buffer
    v0: Buffer | None
    k_k: Buffer
    k_a: Buffer
    r_k: Buffer
    norm: Buffer
    norm_bias: Buffer
    rows: Buffer
    state: Buffer
    out: Buffer
    size: int
    lanes: int
    eps: float

    def vector(self, i: Index, start: Index = 0) -> Expr:
        """Vector i of a head whose numbers begin at `start`."""
        return lanes_at(start + i * self.lanes, self.lanes)


def _sigmoid(x: Expr, lanes: int) -> Expr:
    """1 / (1 + e^-x) = (1 + tanh(x / 2)) / 2."""
    half = fsplat(0.5, lanes)
    return half + half * tanh(x * half, lanes)


def _decay(x: Expr, lanes: int) -> Expr:
    """exp(-e^-0.5 * sigmoid(x))."""
    return exp2(_sigmoid(x, lanes) * fsplat(-math.exp(-0.5) * LOG2E, lanes), lanes)


@T.inline
def _numbers(s, t, h, of, total, number):
    """of: the head's numbers of a token, from DECAY to VALUE."""
    lane = T.meta_var(s.vector(0))
    total[lane] = fsplat(0.0, s.lanes)
    for i in T.serial(s.size // s.lanes):
        here, at = T.meta_var((s.vector(i), s.vector(i, h * s.size)))
        of[DECAY, here] = _decay(s.w[t, at] + s.w0[at], s.lanes)
        of[RATE, here] = _sigmoid(s.a[t, at] + s.a0[at], s.lanes)
        of[UNIT, here] = s.k[t, at] * s.k_k[at]
        of[KEY, here] = s.k[t, at] * (
            (of[RATE, here] - fsplat(1.0, s.lanes)) * s.k_a[at] + fsplat(1.0, s.lanes)
        )
        of[VALUE, here] = s.v[t, at]
        if s.first is not None:
            of[VALUE, here] = of[VALUE, here] + (s.first[t, at] - of[VALUE, here]) * _sigmoid(
                s.b[t, at] + s.v0[at], s.lanes
            )
        total[lane] = total[lane] + of[UNIT, here] * of[UNIT, here]
    number[0] = T.float32(1) / T.max(T.sqrt(halved_sum(total[lane], s.lanes)), T.float32(SMALLEST))
    for i in T.serial(s.size // s.lanes):
        here = T.meta_var(s.vector(i))
        of[UNIT, here] = of[UNIT, here] * splat(number[0], s.lanes)
        of[RATE, here] = of[RATE, here] * of[UNIT, here]


@T.inline
def _advance(s, old, slot, t, h, of, seen, gives):
    """The state of a head behind one token more, and what it gives."""
    for i in T.unroll(s.size // s.lanes):
        here = T.meta_var(s.vector(i))
        seen[here] = fsplat(0.0, s.lanes)
        gives[here] = fsplat(0.0, s.lanes)
    for j in T.serial(s.size):
        for i in T.unroll(s.size // s.lanes):
            here = T.meta_var(s.vector(i))
            seen[here] = seen[here] + s.state[old, h, j, here] * splat(of[UNIT, j], s.lanes)
    for j in T.serial(s.size):
        for i in T.unroll(s.size // s.lanes):
            here = T.meta_var(s.vector(i))
            s.state[slot, h, j, here] = (
                s.state[old, h, j, here] * splat(of[DECAY, j], s.lanes)
                - seen[here] * splat(of[RATE, j], s.lanes)
                + of[VALUE, here] * splat(of[KEY, j], s.lanes)
            )
            gives[here] = gives[here] + s.state[slot, h, j, here] * splat(
                s.r[t, h * s.size + j], s.lanes
            )


@T.inline
def _finish(s, t, h, of, gives, total, number):
    """What a head gives, normalised, with its own value, times the gate."""
    lane = T.meta_var(s.vector(0))
    total[lane] = fsplat(0.0, s.lanes)
    for i in T.serial(s.size // s.lanes):
        total[lane] = total[lane] + gives[s.vector(i)]
    number[0] = halved_sum(total[lane], s.lanes) * T.float32(1.0 / s.size)
    total[lane] = fsplat(0.0, s.lanes)
    for i in T.serial(s.size // s.lanes):
        here = T.meta_var(s.vector(i))
        gives[here] = gives[here] - splat(number[0], s.lanes)
        total[lane] = total[lane] + gives[here] * gives[here]
    number[0] = T.float32(1) / T.sqrt(
        halved_sum(total[lane], s.lanes) * T.float32(1.0 / s.size) + T.float32(s.eps)
    )
    total[lane] = fsplat(0.0, s.lanes)
    for i in T.serial(s.size // s.lanes):
        here, at = T.meta_var((s.vector(i), s.vector(i, h * s.size)))
        total[lane] = total[lane] + s.r[t, at] * of[KEY, here] * s.r_k[at]
    number[1] = halved_sum(total[lane], s.lanes)
    for i in T.serial(s.size // s.lanes):
        here, at = T.meta_var((s.vector(i), s.vector(i, h * s.size)))
        s.out[t, at] = (
            gives[here] * splat(number[0], s.lanes) * s.norm[at]
            + s.norm_bias[at]
            + of[VALUE, here] * splat(number[1], s.lanes)
        ) * s.g[t, at]


@T.inline
def _head(s, h, r):
    """A head of all rows, each of which has tokens. The first token of a row reads the slot of the
    state before it."""
    of = T.alloc_buffer((5, s.size), "float32")
    seen = T.alloc_buffer((s.size,), "float32")
    gives = T.alloc_buffer((s.size,), "float32")
    total = T.alloc_buffer((s.lanes,), "float32")
    number = T.alloc_buffer((2,), "float32")
    for row in T.serial(r):
        for i in T.serial(s.rows[row, 1]):
            t = T.meta_var(s.rows[row, 0] + i)
            old = T.meta_var(s.rows[row, T.if_then_else(i == 0, 2, 3)])
            _numbers(s, t, h, of, total, number)
            _advance(s, old, s.rows[row, 3], t, h, of, seen, gives)
            _finish(s, t, h, of, gives, total, number)


@cache
def wkv(heads: int, size: int, eps: float, machine: int, *, is_first: bool) -> PrimFunc:
    """Kernel arguments; size, of a head, is a multiple of 8; machine: lanes of its vectors:

    r, w, k, v, a, g  float32 [m, heads * size]: what the matrices give
    b, first          the same; the first layer has none
    w0 to norm_bias   float32 [heads * size]; the first layer has no v0
    rows              int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
                      another slot to write
    state             float32 [slots, heads, size, size]: by key, then by value
    out               float32 [m, heads * size]
    """
    width, work = heads * size, heads * size * size

    @T.prim_func(private=True, s_tir=True)
    def time_mix(
        r: T.handle, w: T.handle, k: T.handle, v: T.handle, a: T.handle, g: T.handle,
        b: T.handle, first: T.handle, w0: T.handle, a0: T.handle, v0: T.handle, k_k: T.handle,
        k_a: T.handle, r_k: T.handle, norm: T.handle, norm_bias: T.handle, rows: T.handle,
        state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        count = T.int32()
        n = T.int32()
        R = T.match_buffer(r, (m, width), "float32")
        W = T.match_buffer(w, (m, width), "float32")
        K = T.match_buffer(k, (m, width), "float32")
        V = T.match_buffer(v, (m, width), "float32")
        A = T.match_buffer(a, (m, width), "float32")
        G = T.match_buffer(g, (m, width), "float32")
        B = T.match_buffer(b, (m, width), "float32")
        FIRST = T.match_buffer(first, (m, width), "float32")
        W0 = T.match_buffer(w0, (width,), "float32")
        A0 = T.match_buffer(a0, (width,), "float32")
        V0 = T.match_buffer(v0, (width,), "float32")
        KK = T.match_buffer(k_k, (width,), "float32")
        KA = T.match_buffer(k_a, (width,), "float32")
        RK = T.match_buffer(r_k, (width,), "float32")
        NORM = T.match_buffer(norm, (width,), "float32")
        SHIFT = T.match_buffer(norm_bias, (width,), "float32")
        ROWS = T.match_buffer(rows, (count, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, size, size), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        with T.sblock("root"):
            s = T.meta_var(
                Wkv(
                    R, W, K, V, A, G, None if is_first else B, None if is_first else FIRST,
                    W0, A0, None if is_first else V0, KK, KA, RK, NORM, SHIFT, ROWS, S, O, size,
                    gcd(size, max(machine, 8)), eps,
                )
            )  # fmt: skip
            if m * work >= LARGE:
                for h in T.parallel(heads):
                    _head(s, h, count)
            else:
                for h in T.serial(heads):
                    _head(s, h, count)

    return without(time_mix, *(("B", "FIRST", "V0") if is_first else ()))
