"""A gated delta rule over ragged rows, with a state for each sequence (`models/recurrent.py`).

`delta_keys`, of each token: q, k of each head of keys, divided by sqrt(sum of squares + 1e-6)

`delta_scan`, in parallel for each head, for each row:
    h = old state
    for each token t:
        d = exp(decay * softplus(a + bias))
        h = d * h + sigmoid(b) * (v - d * (h k)) k^T;  out[t] = h q
    new state = h

`chunks.py` says how: prompts and decoding alike, so a token's bits are the same.

`normed_gate`, in parallel for each row: o = norm(o) * silu(z), each head normalised alone
"""

from __future__ import annotations

from functools import cache
from math import gcd

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.chunk_keys import KeyHeads, each_key_head
from mlc_llm.kernels.cpu.chunks import Blocks, Chunks, each_head, state_times
from mlc_llm.kernels.cpu.input_kinds import silu
from mlc_llm.kernels.cpu.silu_conv import L
from mlc_llm.kernels.cpu.state_space import softplus
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, halved_sum, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.state_format import CHUNK, NUMBERS, STATE_ROW
from mlc_llm.record import record

SMALLEST = 1e-6
"""Added to the sum of squares of a head."""
K, Q = range(2)
"""Vectors of a token that the state is multiplied with."""
READS = 2


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
    def width(self) -> int:
        """Columns of `mixed`."""
        return 2 * self.keys + self.heads * self.head_dim

    @property
    def blocks(self) -> Blocks:
        """How a head's base lies."""
        return Blocks(self.head_dim, self.key_dim, self.machine)

    def key_head(self, h: Index) -> Index:
        """Of a head of values."""
        return h % self.key_heads if self.in_turn else h // (self.heads // self.key_heads)


@record(eq=False)
class _Keys:
    """As `KeyHeads.step`."""

    shape: DeltaShape
    mixed: Buffer
    units: Buffer
    """[m, key heads, READS, key_dim]."""

    @T.inline
    def find(self, t, k):
        """Both vectors, as units; q is divided by sqrt(key_dim) too."""
        shape = T.meta_var(self.shape)
        self.unit(t, k, K, shape.keys, 1.0)
        self.unit(t, k, Q, 0, shape.key_dim**-0.5)

    @T.inline
    def unit(self, t, k, which, start, scale):
        """A vector divided by its length, times a factor. start: of all heads, in `mixed`."""
        lanes = T.meta_var(self.shape.lanes)
        lane = T.meta_var(lanes_at(0, lanes))
        total = T.alloc_buffer((lanes,), "float32")
        length = T.alloc_buffer((1,), "float32")
        total[lane] = fsplat(0.0, lanes)
        for v in T.unroll(self.shape.key_dim // lanes):
            at = T.meta_var(lanes_at(start + k * self.shape.key_dim + v * lanes, lanes))
            total[lane] = total[lane] + self.mixed[t, at] * self.mixed[t, at]
        length[0] = T.float32(scale) / T.sqrt(halved_sum(total[lane], lanes) + T.float32(SMALLEST))
        for v in T.unroll(self.shape.key_dim // lanes):
            at = T.meta_var(lanes_at(start + k * self.shape.key_dim + v * lanes, lanes))
            self.units[t, k, which, lanes_at(v * lanes, lanes)] = self.mixed[t, at] * splat(
                length[0], lanes
            )

    def key(self, t: Expr, k: Expr, i: Index, lanes: int) -> Expr:
        """k."""
        return self.units[t, k, K, lanes_at(i, lanes)]

    def x(self, t: Expr, k: Expr, which: Index, i: Index, lanes: int) -> Expr:
        """k or q."""
        return self.units[t, k, which, lanes_at(i, lanes)]


@cache
def delta_keys(shape: DeltaShape) -> PrimFunc:
    """Kernel arguments; key_dim is a multiple of 8:

    mixed  float32 [m, 2 * keys + heads * head_dim]: q, k and v
    rows   int32 [r, STATE_ROW] (`library/signatures.py`)
    keys   float32 [slots, key_heads, CHUNK, key_dim], changed in place
    units  float32 [m, key_heads, READS, key_dim]: k and q
    dots   float32 [m, key_heads, READS, CHUNK]: k of the tokens of the chunk times k and q
    """
    key_heads, key_dim = shape.key_heads, shape.key_dim

    @T.prim_func(private=True, s_tir=True)
    def keep_keys(mixed: T.handle, rows: T.handle, keys: T.handle, units: T.handle, dots: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        X = T.match_buffer(mixed, (m, shape.width), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        KEYS = T.match_buffer(keys, (n, key_heads, CHUNK, key_dim), "float32")
        U = T.match_buffer(units, (m, key_heads, READS, key_dim), "float32")
        G = T.match_buffer(dots, (m, key_heads, READS, CHUNK), "float32")
        with T.sblock("root"):
            heads = T.meta_var(KeyHeads(R, KEYS, G, _Keys(shape, X, U)))
            each_key_head(heads, m, r)

    return keep_keys


@record(eq=False)
class _Step:
    """What a token does with the state of a head (`Chunks.step`)."""

    shape: DeltaShape
    mixed: Buffer
    a: Buffer
    b: Buffer
    bias: Buffer
    decay: Buffer
    units: Buffer
    out: Buffer

    def key_head(self, h: Index) -> Index:
        """Of a head of values."""
        return self.shape.key_head(h)

    @T.inline
    def prepare(self, t, h, at, memory):
        """The decay is exp(decay * softplus(a + bias)), and the step's size sigmoid(b)."""
        number = T.alloc_buffer((3,), "float32")
        number[0] = self.a[t, self.shape.a[1] + h] + self.bias[h]
        softplus(number)
        memory.decay[0] = T.exp(number[0] * self.decay[h])
        memory.steps[at] = T.float32(1) / (
            T.float32(1) + T.exp(T.float32(0) - self.b[t, self.shape.b[1] + h])
        )

    def x(self, t: Expr, h: Expr, which: Index, i: Index) -> Expr:
        """k or q."""
        return self.units[t, self.shape.key_head(h), which, i]

    def key(self, t: Expr, h: Expr, i: Index, lanes: int) -> Expr:
        """k."""
        return self.units[t, self.shape.key_head(h), K, lanes_at(i, lanes)]

    @T.inline
    def token(self, t, h, at, p, memory):
        """The change is the step's size times (v - h k), of h after its decay."""
        blocks = T.meta_var(self.shape.blocks)
        lane = T.meta_var(lanes_at(0, blocks.lanes))
        state_times(blocks, memory, p, at, READS, K, at)
        for u in T.unroll(blocks.vectors):
            column = T.meta_var(blocks.row(p, u, 2 * self.shape.keys + h * self.shape.head_dim))
            memory.changes[at, blocks.row(p, u)] = splat(memory.steps[at], blocks.lanes) * (
                self.mixed[t, column] - memory.result[u, lane]
            )
        state_times(blocks, memory, p, at, READS, Q, at + 1)
        for u in T.unroll(blocks.vectors):
            self.out[t, blocks.row(p, u, h * self.shape.head_dim)] = memory.result[u, lane]


@cache
def delta_scan(shape: DeltaShape) -> PrimFunc:
    """Kernel arguments; key_dim and head_dim are multiples of 8:

    mixed    float32 [m, 2 * keys + heads * head_dim]: q, k and v
    a, b     float32 [m, columns]: a number of each head
    bias     float32 [heads], of a
    decay    float32 [heads]
    rows     int32 [r, STATE_ROW] (`library/signatures.py`)
    keys     float32 [slots, key_heads, CHUNK, key_dim]; like units and dots from `delta_keys`
    units    float32 [m, key_heads, READS, key_dim]
    dots     float32 [m, key_heads, READS, CHUNK]
    changes  float32 [slots, heads, CHUNK, head_dim], changed in place
    numbers  float32 [slots, heads, NUMBERS], changed in place
    bases    float32 [bases, heads, head_dim, key_dim], whose memory `chunks.py` describes, changed
             in place
    out      float32 [m, heads * head_dim]
    """
    heads, head_dim, key_heads, key_dim = (
        shape.heads,
        shape.head_dim,
        shape.key_heads,
        shape.key_dim,
    )

    @T.prim_func(private=True, s_tir=True)
    def delta_rule(
        mixed: T.handle, a: T.handle, b: T.handle, bias: T.handle, decay: T.handle,
        rows: T.handle, keys: T.handle, units: T.handle, dots: T.handle, changes: T.handle,
        numbers: T.handle, bases: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        r = T.int32()
        n = T.int32()
        n_bases = T.int32()
        X = T.match_buffer(mixed, (m, shape.width), "float32")
        A = T.match_buffer(a, (m, shape.a[0]), "float32")
        B = T.match_buffer(b, (m, shape.b[0]), "float32")
        BIAS = T.match_buffer(bias, (heads,), "float32")
        DECAY = T.match_buffer(decay, (heads,), "float32")
        R = T.match_buffer(rows, (r, STATE_ROW), "int32")
        KEYS = T.match_buffer(keys, (n, key_heads, CHUNK, key_dim), "float32")
        U = T.match_buffer(units, (m, key_heads, READS, key_dim), "float32")
        G = T.match_buffer(dots, (m, key_heads, READS, CHUNK), "float32")
        C = T.match_buffer(changes, (n, heads, CHUNK, head_dim), "float32")
        N = T.match_buffer(numbers, (n, heads, NUMBERS), "float32")
        S = T.match_buffer(bases, (n_bases, heads, head_dim, key_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            blocked = T.decl_buffer(
                shape.blocks.shape(n_bases, heads), "float32", data=S.data, elem_offset=0
            )
            step = T.meta_var(_Step(shape, X, A, B, BIAS, DECAY, U, O))
            chunks = T.meta_var(Chunks(shape.blocks, READS, R, KEYS, G, C, N, blocked, step))
            each_head(chunks, heads, m, r)

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
