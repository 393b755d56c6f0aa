"""A selective state space over ragged rows, with a state for each sequence (Mamba 2).

`scan`, in parallel for each head, for each row:
    s = old state
    for each token t:                   prompts and decoding alike, so a token's bits are the same
        dt = softplus(raw dt + bias);  s = exp(dt * a) * s + dt * x B^T
        v[t] = s C + d * x
    new state = s

`gated_norm`, in parallel for each row: v = v * silu(z), each group normalised alone

Rows come in order: one may read the slot that an earlier one has written.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.input_kinds import silu
from mlc_llm.kernels.cpu.silu_conv import L
from mlc_llm.kernels.cpu.state_blocks import Blocks, advance
from mlc_llm.kernels.cpu.vectors import (
    SCHEDULED,
    fsplat,
    lanes_at,
    reduce_sum,
    splat,
)
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

LARGE = 2**15
"""Numbers of all states that are changed, each time counted, from which on a second thread is worth
its wake-up for the scan."""


@record(eq=False)
class Scan:
    """The arguments of `scan`, and the sizes of a model's heads."""

    mixed: Buffer
    projected: Buffer
    bias: Buffer
    a: Buffer
    d: Buffer
    rows: Buffer
    state: Buffer
    out: Buffer
    heads: int
    head_dim: int
    size: int
    groups: int
    start: int
    """Column of the first head's dt."""
    blocks: Blocks
    """How a head's state lies."""


@T.inline
def softplus(number):
    """number[0] = log(1 + e^number[0]), of three numbers. log(1 + e^x) is max(x, 0) +
    log1p(e^-|x|), and log1p(y) is log(u) * y / (u - 1) for u = 1 + y (Kahan)."""
    number[1] = T.exp(T.float32(0) - T.abs(number[0]))
    number[2] = number[1] + T.float32(1)
    number[1] = T.if_then_else(
        number[2] == T.float32(1),
        number[1],
        T.log(number[2]) * number[1] / (number[2] - T.float32(1)),
    )
    number[0] = T.max(number[0], T.float32(0)) + number[1]


@T.inline
def _step_sizes(s, t, h, number):
    """number: dt of a token, then exp(dt * a)."""
    number[0] = s.projected[t, s.start + h] + s.bias[h]
    softplus(number)
    number[1] = T.exp(number[0] * s.a[h, 0])


@T.inline
def _advance(s, old, slot, t, h, number, change, sums):
    """The state of a head behind one token more, and what the head gives."""
    blocks = T.meta_var(s.blocks)
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    inner = T.meta_var(s.heads * s.head_dim)
    b = T.meta_var(inner + h // (s.heads // s.groups) * s.size)
    for p in T.serial(blocks.count):
        column = T.meta_var(h * s.head_dim + p * blocks.wide)
        for u in T.unroll(blocks.vectors):
            change[u, lane] = s.mixed[t, lanes_at(column + u * blocks.lanes, blocks.lanes)] * splat(
                number[0], blocks.lanes
            )
        advance(
            *(blocks, s.state, (old, h, p), slot, number[1], change),
            lambda i: s.mixed[t, b + i],
            lambda i: s.mixed[t, b + s.groups * s.size + i],
            sums,
        )
        for u in T.unroll(blocks.vectors):
            s.out[t, lanes_at(column + u * blocks.lanes, blocks.lanes)] = blocks.whole(
                sums, u
            ) + s.mixed[t, lanes_at(column + u * blocks.lanes, blocks.lanes)] * splat(
                s.d[h, 0], blocks.lanes
            )


@T.inline
def _head(s, h, r):
    """A head of all rows, each of which has tokens. The first token of a row reads the slot of the
    state before it."""
    number = T.alloc_buffer((3,), "float32")
    change = T.meta_var(s.blocks.new_vectors())
    sums = T.meta_var(s.blocks.new_sums())
    for row in T.serial(r):
        for j in T.serial(s.rows[row, 1]):
            old = T.meta_var(s.rows[row, T.if_then_else(j == 0, 2, 3)])
            _step_sizes(s, s.rows[row, 0] + j, h, number)
            _advance(s, old, s.rows[row, 3], s.rows[row, 0] + j, h, number, change, sums)


@cache
def scan(
    heads: int, head_dim: int, size: int, groups: int, columns: int, start: int, machine: int
) -> PrimFunc:
    """Kernel arguments; size is a multiple of 8, head_dim is even, heads of a group are neighbours.
    machine: lanes of its vectors.

    mixed      float32 [m, heads * head_dim + 2 * groups * size]: x, then B and C of each group
    projected  float32 [m, columns]: dt of each head, from column `start` on
    bias       float32 [heads], of dt
    a, d       float32 [heads, 1]
    rows       int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
               another slot to write
    state      float32 [slots, heads, head_dim, size], whose memory `state_blocks.py` describes
    out        float32 [m, heads * head_dim]
    """
    width, work = heads * head_dim + 2 * groups * size, heads * head_dim * size
    blocks = Blocks(head_dim, size, machine)

    @T.prim_func(private=True, s_tir=True)
    def selective_scan(
        mixed: T.handle, projected: T.handle, bias: T.handle, a: T.handle, d: T.handle,
        rows: T.handle, state: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(mixed, (m, width), "float32")
        P = T.match_buffer(projected, (m, columns), "float32")
        B = T.match_buffer(bias, (heads,), "float32")
        A = T.match_buffer(a, (heads, 1), "float32")
        D = T.match_buffer(d, (heads, 1), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, size), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            states = T.decl_buffer(blocks.shape(n, heads), "float32", data=S.data, elem_offset=0)
            s = T.meta_var(
                Scan(X, P, B, A, D, R, states, O, heads, head_dim, size, groups, start, blocks)
            )
            if m * work >= LARGE:
                for h in T.parallel(heads):
                    _head(s, h, r)
            else:
                for h in T.serial(heads):
                    _head(s, h, r)

    return selective_scan


@cache
def gated_norm(groups: int, width: int, columns: int, eps: float) -> PrimFunc:
    """Kernel arguments; width, of a group, is a multiple of 8:

    projected  float32 [m, columns]: z in the first columns
    weight     float32 [groups, width]
    v          float32 [m, groups * width], changed in place
    """

    @T.inline
    def one_row(Z, W, V, row):
        """Gates and normalises a row."""
        lane = T.meta_var(lanes_at(0, L))
        total = T.alloc_buffer((L,), "float32")
        factor = T.alloc_buffer((1,), "float32")
        for g in T.serial(groups):
            total[lane] = fsplat(0.0, L)
            for i in T.serial(width // L):
                at = T.meta_var(lanes_at(g * width + i * L, L))
                V[row, at] = V[row, at] * silu(Z[row, at], L)
                total[lane] = total[lane] + V[row, at] * V[row, at]
            factor[0] = T.float32(1) / T.sqrt(
                reduce_sum(total, L) * T.float32(1.0 / width) + T.float32(eps)
            )
            for i in T.serial(width // L):
                at = T.meta_var(lanes_at(g * width + i * L, L))
                V[row, at] = V[row, at] * splat(factor[0], L) * W[g, lanes_at(i * L, L)]

    @T.prim_func(private=True, s_tir=True)
    def norm_rows(projected: T.handle, weight: T.handle, v: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Z = T.match_buffer(projected, (m, columns), "float32")
        W = T.match_buffer(weight, (groups, width), "float32")
        V = T.match_buffer(v, (m, groups * width), "float32")
        with T.sblock("root"):
            each_row(one_row, m, Z, W, V)

    return norm_rows
