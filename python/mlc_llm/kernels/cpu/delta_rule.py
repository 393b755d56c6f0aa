"""A gated delta rule over ragged rows, with a state for each sequence (`models/recurrent.py`).

`delta_scan`, in parallel for each head of values, for each row:
    h = old state, read by the first token
    for each token t:                   prompts and decoding alike, so a token's bits are the same
        q, k of the head of keys, each divided by sqrt(sum of squares + 1e-6)
        d = exp(decay * softplus(a + bias))
        h = d * h + sigmoid(b) * (v - d * (h k)) k^T;  out[t] = h q
    new state = h

The rows of h do not see each other: a block of them (`state_blocks.py`) goes through TOKENS tokens
before the next one does, so that it stays in the nearest cache.

`normed_gate`, in parallel for each row: o = norm(o) * silu(z), each head normalised alone

Rows come in order: one may read the slot that an earlier one has written.
"""

from __future__ import annotations

from functools import cache
from math import gcd

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.input_kinds import silu
from mlc_llm.kernels.cpu.silu_conv import L
from mlc_llm.kernels.cpu.state_blocks import Blocks, advance, multiply
from mlc_llm.kernels.cpu.state_space import LARGE, softplus
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, halved_sum, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.record import record

SMALLEST = 1e-6
"""Added to the sum of squares of a head."""
TOKENS = 32
"""Of a sequence, that are computed together."""


@record()
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
    machine: int
    """Lanes of a vector of the machine."""

    @property
    def keys(self) -> int:
        """Numbers of q, and of k."""
        return self.key_heads * self.key_dim

    @property
    def lanes(self) -> int:
        return gcd(self.key_dim, 16)

    @property
    def blocks(self) -> Blocks:
        """How a head's state lies."""
        return Blocks(self.head_dim, self.key_dim, self.machine)


@record(eq=False)
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


@record(eq=False)
class Memory:
    """What a task keeps of some tokens, and of the rows that it computes."""

    units: Buffer
    """[TOKENS, 2, key_dim]: q and k."""
    numbers: Buffer
    """[TOKENS, 2]: two factors of a step."""
    total: Buffer
    length: Buffer
    sums: Buffer
    change: Buffer


@T.inline
def _unit(shape, s, t, start, which, scale, memory, j):
    """units[j, which] = q or k of a token, divided by its length, times a factor."""
    lanes = T.meta_var(shape.lanes)
    lane = T.meta_var(lanes_at(0, lanes))
    memory.total[lane] = fsplat(0.0, lanes)
    for v in T.unroll(shape.key_dim // lanes):
        at = T.meta_var(lanes_at(start + v * lanes, lanes))
        memory.total[lane] = memory.total[lane] + s.mixed[t, at] * s.mixed[t, at]
    memory.length[0] = T.float32(scale) / T.sqrt(
        halved_sum(memory.total[lane], lanes) + T.float32(SMALLEST)
    )
    for v in T.unroll(shape.key_dim // lanes):
        at = T.meta_var(lanes_at(start + v * lanes, lanes))
        memory.units[j, which, lanes_at(v * lanes, lanes)] = s.mixed[t, at] * splat(
            memory.length[0], lanes
        )


@T.inline
def _step_sizes(shape, s, t, h, number, memory, j):
    """numbers[j]: exp(decay * softplus(a + bias)), then sigmoid(b)."""
    number[0] = s.a[t, shape.a[1] + h] + s.bias[h]
    softplus(number)
    memory.numbers[j, 0] = T.exp(number[0] * s.decay[h])
    memory.numbers[j, 1] = T.float32(1) / (
        T.float32(1) + T.exp(T.float32(0) - s.b[t, shape.b[1] + h])
    )


@T.inline
def _advance(shape, s, old, slot, t, h, p, memory, j):
    """Block p of a head's state behind one token more, and what its rows give."""
    blocks = T.meta_var(shape.blocks)
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    rows = T.meta_var(h * shape.head_dim + p * blocks.wide)
    k = T.meta_var(lambda i: memory.units[j, 1, i])
    q = T.meta_var(lambda i: memory.units[j, 0, i])
    multiply(blocks, s.state, (old, h, p), k, memory.sums)
    for u in T.unroll(blocks.vectors):
        memory.change[u, lane] = splat(memory.numbers[j, 1], blocks.lanes) * (
            s.mixed[t, lanes_at(2 * shape.keys + rows + u * blocks.lanes, blocks.lanes)]
            - splat(memory.numbers[j, 0], blocks.lanes) * blocks.whole(memory.sums, u)
        )
    advance(
        *(blocks, s.state, (old, h, p), slot, memory.numbers[j, 0], memory.change, k, q),
        memory.sums,
    )
    for u in T.unroll(blocks.vectors):
        s.out[t, lanes_at(rows + u * blocks.lanes, blocks.lanes)] = blocks.whole(memory.sums, u)


@T.inline
def _tokens(shape, s, row, c, count, h, number, memory):
    """A head's state behind up to TOKENS tokens more of a row. The first token reads the slot of
    the state before the row."""
    k = T.meta_var(h % shape.key_heads if shape.in_turn else h // (shape.heads // shape.key_heads))
    first = T.meta_var(s.rows[row, 0] + c * TOKENS)
    for j in T.serial(count):
        scale = T.meta_var(shape.key_dim**-0.5)
        _unit(shape, s, first + j, k * shape.key_dim, 0, scale, memory, j)
        _unit(shape, s, first + j, shape.keys + k * shape.key_dim, 1, 1.0, memory, j)
        _step_sizes(shape, s, first + j, h, number, memory, j)
    for p in T.serial(shape.blocks.count):
        for j in T.serial(count):
            old = T.meta_var(s.rows[row, T.if_then_else(c + j == 0, 2, 3)])
            _advance(shape, s, old, s.rows[row, 3], first + j, h, p, memory, j)


@T.inline
def _head(shape, s, h, r):
    """A head of all rows, each of which has tokens."""
    number = T.alloc_buffer((3,), "float32")
    units = T.alloc_buffer((TOKENS, 2, shape.key_dim), "float32")
    numbers = T.alloc_buffer((TOKENS, 2), "float32")
    total = T.alloc_buffer((shape.lanes,), "float32")
    length = T.alloc_buffer((1,), "float32")
    sums = T.meta_var(shape.blocks.new_sums())
    change = T.meta_var(shape.blocks.new_vectors())
    for row in T.serial(r):
        for c in T.serial((s.rows[row, 1] + TOKENS - 1) // TOKENS):
            _tokens(
                *(shape, s, row, c, T.min(s.rows[row, 1] - c * TOKENS, TOKENS), h, number),
                Memory(units, numbers, total, length, sums, change),
            )


@cache
def delta_scan(shape: DeltaShape) -> PrimFunc:
    """Kernel arguments; key_dim and head_dim are multiples of 8:

    mixed  float32 [m, 2 * keys + heads * head_dim]: q, k and v
    a, b   float32 [m, columns]: a number of each head
    bias   float32 [heads], of a
    decay  float32 [heads]
    rows   int32 [r, STATE_ROW]: first token, number of tokens, slot to read,
           another slot to write
    state  float32 [slots, heads, head_dim, key_dim], whose memory `state_blocks.py` describes
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
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        S = T.match_buffer(state, (n, heads, head_dim, key_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            states = T.decl_buffer(
                shape.blocks.shape(n, heads), "float32", data=S.data, elem_offset=0
            )
            s = T.meta_var(Scan(X, A, B, C, D, R, states, O))
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
