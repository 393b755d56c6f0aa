"""A gated delta rule over ragged rows, with a state for each sequence (`models/recurrent.py`).

`delta_scan`, in parallel for each head of values, for each row:
    h = old state
    for each token t:                   prompts and decoding alike, so a token's bits are the same
        q, k of the head of keys, each divided by sqrt(sum of squares + 1e-6)
        h = exp(decay * softplus(a + bias)) * h
        h = h + sigmoid(b) * (v - h k) k^T;  out[t] = h q
    new state = h

`normed_gate`, in parallel for each row: o = norm(o) * silu(z), each head normalised alone

Rows come in order: one may read the slot that an earlier one has written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.silu_conv import L, silu
from mlc_llm.kernels.cpu.state_space import LARGE, softplus
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer

SMALLEST = 1e-6
"""Added to the sum of squares of a head."""


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of the heads as in `GatedDeltaSpec`, and where a and b begin in rows of how many
    columns."""

    key_heads: int
    key_dim: int
    heads: int
    head_dim: int
    in_turn: bool
    a: tuple[int, int]
    """Columns of a row, and the first one."""
    b: tuple[int, int]

    @property
    def keys(self) -> int:
        """Numbers of q, and of k."""
        return self.key_heads * self.key_dim


@dataclass(frozen=True, eq=False)
class Scan:
    """The arguments of `delta_scan`."""

    mixed: Buffer
    a: Buffer
    b: Buffer
    bias: Buffer
    decay: Buffer
    rows: Buffer
    state: Buffer
    out: Buffer


@T.inline
def _unit(shape, s, t, start, which, scale, unit, total):
    """unit[which] = q or k of a token, divided by its length, times a factor."""
    lane = T.meta_var(lanes_at(0, L))
    total[lane] = fsplat(0.0, L)
    for v in T.unroll(shape.key_dim // L):
        total[lane] = (
            total[lane]
            + s.mixed[t, lanes_at(start + v * L, L)] * s.mixed[t, lanes_at(start + v * L, L)]
        )
    unit[which, lane] = splat(
        T.float32(scale) / T.sqrt(reduce_sum(total, L) + T.float32(SMALLEST)), L
    )
    total[lane] = unit[which, lane]
    for v in T.unroll(shape.key_dim // L):
        unit[which, lanes_at(v * L, L)] = s.mixed[t, lanes_at(start + v * L, L)] * total[lane]


@T.inline
def _step_sizes(shape, s, t, h, number):
    """number: exp(decay * softplus(a + bias)), then sigmoid(b)."""
    number[0] = s.a[t, shape.a[1] + h] + s.bias[h]
    softplus(number)
    number[0] = T.exp(number[0] * s.decay[h])
    number[1] = T.float32(1) / (T.float32(1) + T.exp(T.float32(0) - s.b[t, shape.b[1] + h]))


@T.inline
def _advance(shape, s, slot, t, h, number, unit, total):
    """The state of a head behind one token more, and what the head gives."""
    lane = T.meta_var(lanes_at(0, L))
    v_start = T.meta_var(2 * shape.keys + h * shape.head_dim)
    for p in T.serial(shape.head_dim):
        total[lane] = fsplat(0.0, L)
        for v in T.unroll(shape.key_dim // L):
            at = T.meta_var(lanes_at(v * L, L))
            s.state[slot, h, p, at] = s.state[slot, h, p, at] * splat(number[0], L)
            total[lane] = total[lane] + s.state[slot, h, p, at] * unit[1, at]
        number[2] = number[1] * (s.mixed[t, v_start + p] - reduce_sum(total, L))
        total[lane] = fsplat(0.0, L)
        for v in T.unroll(shape.key_dim // L):
            at = T.meta_var(lanes_at(v * L, L))
            s.state[slot, h, p, at] = s.state[slot, h, p, at] + splat(number[2], L) * unit[1, at]
            total[lane] = total[lane] + s.state[slot, h, p, at] * unit[0, at]
        s.out[t, h * shape.head_dim + p] = reduce_sum(total, L)


@T.inline
def _head(shape, s, h, r):
    """A head of all rows."""
    number = T.alloc_buffer((3,), "float32")
    total = T.alloc_buffer((L,), "float32")
    unit = T.alloc_buffer((2, shape.key_dim), "float32")
    k = T.meta_var(h % shape.key_heads if shape.in_turn else h // (shape.heads // shape.key_heads))
    for row in T.serial(r):
        for p in T.serial(shape.head_dim):
            for v in T.serial(shape.key_dim // L):
                at = T.meta_var(lanes_at(v * L, L))
                s.state[s.rows[row, 3], h, p, at] = s.state[s.rows[row, 2], h, p, at]
        for j in T.serial(s.rows[row, 1]):
            t = T.meta_var(s.rows[row, 0] + j)
            _unit(shape, s, t, k * shape.key_dim, 0, shape.key_dim**-0.5, unit, total)
            _unit(shape, s, t, shape.keys + k * shape.key_dim, 1, 1.0, unit, total)
            _step_sizes(shape, s, t, h, number)
            _advance(shape, s, s.rows[row, 3], t, h, number, unit, total)


@cache
def delta_scan(shape: DeltaShape) -> PrimFunc:
    """Kernel arguments; key_dim is a multiple of 8:

    mixed  float32 [m, 2 * keys + heads * head_dim]: q, k and v
    a, b   float32 [m, columns]: a number of each head
    bias   float32 [heads], of a
    decay  float32 [heads]
    rows   int32 [r, 4]: first token, number of tokens, slot to read, another slot to write
    state  float32 [slots, heads, head_dim, key_dim]
    out    float32 [m, heads * head_dim]
    """
    heads, head_dim, key_dim = shape.heads, shape.head_dim, shape.key_dim
    width, work = 2 * shape.keys + heads * head_dim, heads * head_dim * key_dim

    @T.prim_func(private=True, s_tir=True)
    def delta_rule(
        mixed: T.handle, a: T.handle, b: T.handle, bias: T.handle, decay: T.handle,
        rows: T.handle, state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(mixed, (m, width), "float32")
        A = T.match_buffer(a, (m, shape.a[0]), "float32")
        B = T.match_buffer(b, (m, shape.b[0]), "float32")
        C = T.match_buffer(bias, (heads,), "float32")
        D = T.match_buffer(decay, (heads,), "float32")
        R = T.match_buffer(rows, (r, 4), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, key_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            s = T.meta_var(Scan(X, A, B, C, D, R, S, O))
            if m * work >= LARGE:
                for h in T.parallel(heads):
                    _head(shape, s, h, r)
            else:
                for h in T.serial(heads):
                    _head(shape, s, h, r)

    return delta_rule


@cache
def normed_gate(heads: int, head_dim: int, columns: int, start: int, eps: float) -> PrimFunc:
    """Kernel arguments; head_dim and start are multiples of 8:

    z       float32 [m, columns]: the gate begins at column `start`
    weight  float32 [head_dim]
    o       float32 [m, heads * head_dim], changed in place
    """

    @T.inline
    def one_row(Z, W, V, row):
        """Normalises and gates a row."""
        lane = T.meta_var(lanes_at(0, L))
        total = T.alloc_buffer((L,), "float32")
        factor = T.alloc_buffer((1,), "float32")
        for h in T.serial(heads):
            total[lane] = fsplat(0.0, L)
            for i in T.serial(head_dim // L):
                at = T.meta_var(lanes_at(h * head_dim + i * L, L))
                total[lane] = total[lane] + V[row, at] * V[row, at]
            factor[0] = T.float32(1) / T.sqrt(
                reduce_sum(total, L) * T.float32(1.0 / head_dim) + T.float32(eps)
            )
            for i in T.serial(head_dim // L):
                at = T.meta_var(lanes_at(h * head_dim + i * L, L))
                gate = T.meta_var(Z[row, lanes_at(start + h * head_dim + i * L, L)])
                V[row, at] = (
                    V[row, at] * splat(factor[0], L) * W[lanes_at(i * L, L)] * silu(gate, L)
                )

    @T.prim_func(private=True, s_tir=True)
    def norm_rows(z: T.handle, weight: T.handle, o: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Z = T.match_buffer(z, (m, columns), "float32")
        W = T.match_buffer(weight, (head_dim,), "float32")
        V = T.match_buffer(o, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            each_row(one_row, m, Z, W, V)

    return norm_rows
