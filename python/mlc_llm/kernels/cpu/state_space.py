"""A selective state space over ragged rows, with a state for each sequence (Mamba 2).

`scan`, in parallel for each head, for each row:
    s = old state
    for each token t:
        dt = softplus(raw dt + bias);  s = exp(dt * a) * s + dt * x B^T
        v[t] = s C + d * x
    new state = s

`chunks.py` says how: prompts and decoding alike, so a token's bits are the same. `space_keys` goes
before it.

`gated_norm`, in parallel for each row: v = v * silu(z), each group normalised alone
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.chunk_keys import KeyHeads, each_key_head
from mlc_llm.kernels.cpu.chunks import Blocks, Chunks, each_head, state_times
from mlc_llm.kernels.cpu.input_kinds import silu
from mlc_llm.kernels.cpu.silu_conv import L
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.state_format import CHUNK, NUMBERS, STATE_ROW
from mlc_llm.record import record


@record()
class SpaceShape:
    """Sizes of a model's heads: heads of a group are neighbours."""

    heads: int
    head_dim: int
    size: int
    groups: int
    machine: int
    """Lanes of a vector of the machine."""

    @property
    def width(self) -> int:
        """Columns of `mixed`."""
        return self.heads * self.head_dim + 2 * self.groups * self.size

    @property
    def blocks(self) -> Blocks:
        """How a head's base lies."""
        return Blocks(self.head_dim, self.size, self.machine)

    def group(self, h: Index) -> Index:
        """Of a head."""
        return h // (self.heads // self.groups)

    def column(self, group: Index, which: int, i: Index) -> Index:
        """Of number i of B (0) or C (1)."""
        return self.heads * self.head_dim + (which * self.groups + group) * self.size + i


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


@record(eq=False)
class _Step:
    """What a token does with the state of a head (`Chunks.step`)."""

    shape: SpaceShape
    mixed: Buffer
    projected: Buffer
    start: int
    """Column of the first head's dt."""
    bias: Buffer
    a: Buffer
    d: Buffer
    out: Buffer

    def key_head(self, h: Index) -> Index:
        """Its group."""
        return self.shape.group(h)

    @T.inline
    def prepare(self, t, h, at, memory):
        """The decay is exp(dt * a)."""
        number = T.alloc_buffer((3,), "float32")
        number[0] = self.projected[t, self.start + h] + self.bias[h]
        softplus(number)
        memory.steps[at] = number[0]
        memory.decay[0] = T.exp(number[0] * self.a[h, 0])

    def x(self, t: Expr, h: Expr, which: Index, i: Index) -> Expr:
        """C."""
        return self.mixed[t, self.shape.column(self.shape.group(h), 1, i)]

    def key(self, t: Expr, h: Expr, i: Index, lanes: int) -> Expr:
        """B."""
        return self.mixed[t, lanes_at(self.shape.column(self.shape.group(h), 0, i), lanes)]

    @T.inline
    def token(self, t, h, at, p, memory):
        """The change is dt * x."""
        blocks = T.meta_var(self.shape.blocks)
        lane = T.meta_var(lanes_at(0, blocks.lanes))
        for u in T.unroll(blocks.vectors):
            column = T.meta_var(blocks.row(p, u, h * self.shape.head_dim))
            memory.changes[at, blocks.row(p, u)] = self.mixed[t, column] * splat(
                memory.steps[at], blocks.lanes
            )
        state_times(blocks, memory, p, at, 1, 0, at + 1)
        for u in T.unroll(blocks.vectors):
            column = T.meta_var(blocks.row(p, u, h * self.shape.head_dim))
            self.out[t, column] = memory.result[u, lane] + self.mixed[t, column] * splat(
                self.d[h, 0], blocks.lanes
            )


@record(eq=False)
class _Keys:
    """As `KeyHeads.step`: keys are B, and C reads them."""

    shape: SpaceShape
    mixed: Buffer

    @T.inline
    def find(self, t, k):
        """They are there."""

    def key(self, t: Expr, k: Expr, i: Index, lanes: int) -> Expr:
        """B."""
        return self.mixed[t, lanes_at(self.shape.column(k, 0, i), lanes)]

    def x(self, t: Expr, k: Expr, which: Index, i: Index, lanes: int) -> Expr:
        """C."""
        return self.mixed[t, lanes_at(self.shape.column(k, 1, i), lanes)]


@cache
def space_keys(shape: SpaceShape) -> PrimFunc:
    """Kernel arguments:

    mixed  float32 [m, heads * head_dim + 2 * groups * size]: x, then B and C of each group
    rows   int32 [r, STATE_ROW] (`library/signatures.py`)
    keys   float32 [slots, groups, CHUNK, size], changed in place
    dots   float32 [m, groups, 1, CHUNK]: B of the tokens of the chunk times C
    """

    @T.prim_func(private=True, s_tir=True)
    def keep_keys(mixed: T.handle, rows: T.handle, keys: T.handle, dots: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(mixed, (m, shape.width), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        K = T.match_buffer(keys, (n, shape.groups, CHUNK, shape.size), "float32")
        D = T.match_buffer(dots, (m, shape.groups, 1, CHUNK), "float32")
        with T.sblock("root"):
            heads = T.meta_var(KeyHeads(R, K, D, _Keys(shape, X)))
            each_key_head(heads, m, r)

    return keep_keys


@cache
def scan(shape: SpaceShape, columns: int, start: int) -> PrimFunc:
    """Kernel arguments; size is a multiple of 8, head_dim is even:

    mixed      float32 [m, heads * head_dim + 2 * groups * size]: x, then B and C of each group
    projected  float32 [m, columns]: dt of each head, from column `start` on
    bias       float32 [heads], of dt
    a, d       float32 [heads, 1]
    rows       int32 [r, STATE_ROW] (`library/signatures.py`)
    keys       float32 [slots, groups, CHUNK, size]
    dots       float32 [m, groups, 1, CHUNK]
    changes    float32 [slots, heads, CHUNK, head_dim], changed in place
    numbers    float32 [slots, heads, NUMBERS], changed in place
    bases      float32 [bases, heads, head_dim, size], whose memory `chunks.py` describes, changed
               in place
    out        float32 [m, heads * head_dim]
    """
    heads, head_dim, size = shape.heads, shape.head_dim, shape.size

    @T.prim_func(private=True, s_tir=True)
    def selective_scan(
        mixed: T.handle, projected: T.handle, bias: T.handle, a: T.handle, d: T.handle,
        rows: T.handle, keys: T.handle, dots: T.handle, changes: T.handle, numbers: T.handle,
        bases: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        n_bases = T.int32()
        X = T.match_buffer(mixed, (m, shape.width), "float32")
        P = T.match_buffer(projected, (m, columns), "float32")
        BIAS = T.match_buffer(bias, (heads,), "float32")
        A = T.match_buffer(a, (heads, 1), "float32")
        D = T.match_buffer(d, (heads, 1), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        K = T.match_buffer(keys, (n, shape.groups, CHUNK, size), "float32")
        G = T.match_buffer(dots, (m, shape.groups, 1, CHUNK), "float32")
        C = T.match_buffer(changes, (n, heads, CHUNK, head_dim), "float32")
        N = T.match_buffer(numbers, (n, heads, NUMBERS), "float32")
        B = T.match_buffer(bases, (n_bases, heads, head_dim, size), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            blocked = T.decl_buffer(
                shape.blocks.shape(n_bases, heads), "float32", data=B.data, elem_offset=0
            )
            step = T.meta_var(_Step(shape, X, P, start, BIAS, A, D, O))
            chunks = T.meta_var(Chunks(shape.blocks, 1, R, K, G, C, N, blocked, step))
            each_head(chunks, heads, m, r)

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
