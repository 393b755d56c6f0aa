"""Fast products with fixed-point weights: bfloat16 on AMX tiles (`amx_pipeline.py`).

    rows below fast_rows[0]:  C = X * bfloat16(W without its unit)      for each k block
                              Y = (sum of C over k blocks, in their order) * W.unit
    the other rows:           as in `fixed_point.py`

X          int32 [m, row_width(k)]            activations (`bf16.py`)
W          int32 [n/32, k/group + 1, stride]  packed weights (`backends/cpu/formats.py`)
fast_rows  int32 [1]                          number of the first rows that are fast
Y          float32 [m, n]                     the result
B          int32 [2, groups, 2, 16, 16]       tiles of the first, then of the second 16 rows of W
C          float32 [4, 16, 16]                two tiles of rows times two of weights

A row block is 32 rows, a weight block a column block and up to 18 groups, a step 32 columns.
A fast row's bits do not depend on the other rows.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import VECTORS, Blocking
from mlc_llm.kernels.cpu.amx_exact import ExactProduct
from mlc_llm.kernels.cpu.amx_pipeline import (
    AHEAD,
    AmxProduct,
    Buffers,
    L,
    Pipeline,
    ask_for_word,
)
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.fixed_point import least_gemm_rows
from mlc_llm.kernels.cpu.fixed_point_gemv import FixedPointGemv
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quant_blocks import GROUP, row_width
from mlc_llm.kernels.cpu.row_block import put
from mlc_llm.kernels.cpu.scales import MINIMA, SCALES, unit_at, whole_at
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

MOST_GROUPS = 18
"""Groups of a k block, at most: their weights lie in the first cache."""
WHOLE = 1024
"""Columns up to which the rows of a usual prompt stay in the second cache."""
MOST_BLOCKS = 8
"""Column blocks that a k block of longer rows meets before the next one, at most."""


def fast_fixed_point_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for fast rows."""
    words = row_width(k)
    fast = Pipeline(n, FastProduct(n, k, fmt, accumulate))
    gemv = FixedPointGemv(n, k, fmt, isa, accumulate)
    gemm = Pipeline(n, ExactProduct(k, fmt, accumulate))

    @T.prim_func(private=True, s_tir=True)
    def fast_and_exact_product(
        x: T.handle,
        W: T.Buffer((n // BLOCK, k // fmt.group + 1, fmt.stride), "int32"),
        fast_rows: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, words), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            exact_X = T.decl_buffer(
                (m - fast_rows[0], words), "int32", data=X.data, elem_offset=fast_rows[0] * words
            )
            exact_Y = T.decl_buffer(
                (m - fast_rows[0], n), "float32", data=Y.data, elem_offset=fast_rows[0] * n
            )
            if fast_rows[0] > 0:
                fast.multiply(X, W, Y, fast_rows[0])
            if m - fast_rows[0] >= least_gemm_rows(n, k):
                gemm.multiply(exact_X, W, exact_Y, m - fast_rows[0])
            elif fast_rows[0] < m:
                for block in T.parallel(gemv.apart):
                    align_stack()
                    gemv.multiply(exact_X, W, exact_Y, block, m - fast_rows[0])

    return fast_and_exact_product


class FastProduct(AmxProduct):
    """See `AmxProduct`."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        assert fmt.words == 4, "a word for each of the four products of a step"
        self.fmt, self.accumulate = fmt, accumulate
        groups = k // fmt.group
        self.k_block_groups = -(-groups // -(-groups // MOST_GROUPS))
        self.k_blocks = -(-groups // self.k_block_groups)
        self.blocking = Blocking(
            groups=groups,
            k_block_groups=self.k_block_groups,
            step_groups=1,
            row_tiles=2,
            vectors=VECTORS,
            sums=4,
            dtype="float32",
            row_words=row_width(k),
            task_blocks=_blocks_together(n // BLOCK) if k > WHOLE else 1,
        )

    def multiply(self, x: Index, w: Index) -> Expr:
        """X tiles are 16 rows each, W tiles 16 rows of weights each."""
        return amx.multiply_floats(amx.SUMS + 2 * x + w, amx.X_TILES + x, amx.W_TILES + w)

    def first_word(self, k_block: Index, step: Index, x: Index) -> Index:
        """Both tiles have the same columns."""
        return (k_block * self.k_block_groups + step) * (GROUP // 2)

    @T.inline
    def finish_row(self, buffers, place, row, partial, r):
        """Row r of the row block: row r % 16 of two tiles of sums."""
        if place.k_block % self.k_blocks < self.k_blocks - 1:
            for v in T.unroll(VECTORS):
                buffers.F[partial, r, v, lanes_at(0, L)] = self.added(
                    buffers, place.k_block, partial, r, v
                )
        else:
            for v in T.unroll(VECTORS):
                put(
                    *(buffers.Y, row, place.column + v * L),
                    self.added(buffers, place.k_block, partial, r, v)
                    * unit_at(buffers.W, place.block, v * L, L),
                    *(L, self.accumulate),
                )

    def added(self, buffers: Buffers, k_block: Index, partial: Index, r: Index, v: Index) -> Expr:
        """Vector v of row r of C plus that of F."""
        sums = buffers.C[r // ROWS * 2 + v, r % ROWS, lanes_at(0, L)]
        if self.k_blocks == 1:
            return sums
        so_far = buffers.F[partial, r, v, lanes_at(0, L)]
        return sums + T.Select(k_block == 0, fsplat(0.0, L), so_far)

    @T.inline
    def fill(self, W, B, side, place, group, part):
        """Word `part` of a group becomes four rows of both tiles."""
        self.fill_word(
            W, B, side, place.block, group, place.k_block * self.k_block_groups + group, part
        )

    @T.inline
    def fill_word(self, W, B, side, block, g, group, j):
        """Word j of a group, which is group g of the k block.

        Bits 4 * t and 16 + 4 * t become row 4 * t + j of a tile.
        """
        ask_for_word(W, block, group + AHEAD, j, self.fmt.words)
        for v in T.unroll(VECTORS):
            for t in T.unroll(4):
                B[side, g, v, 4 * t + j, lanes_at(0, L)] = self.pair(W, block, group, j, v, t)

    def pair(self, W: Buffer, block: Index, group: Index, j: Index, v: Index, t: Index) -> Expr:
        """Nibbles t and t + 4 of word j as bfloat16, without their unit."""
        word = W[block, group, lanes_at(j * BLOCK + v * L, L)]
        scale = _floats(whole_at(self.fmt, W, block, group, SCALES, v, L))
        if self.fmt.has_minimum:
            shift = _floats(whole_at(self.fmt, W, block, group, MINIMA, v, L))
        else:
            shift = scale * splat(T.float32(-self.fmt.offset), L)

        def value(bits: Index) -> Expr:
            """The nibble from bit `bits` on, as float32."""
            q = T.shift_right(word, splat(bits, L)) & splat(T.int32(15), L)
            return T.cast(q, f"float32x{L}") * scale + shift

        return round_pair(value(4 * t), value(4 * t + 16))


def _blocks_together(blocks: int) -> int:
    """Column blocks of a task: as many as can be, and an even number of tasks if that can be."""
    fitting = [b for b in range(1, MOST_BLOCKS + 1) if blocks % b == 0]
    even = [b for b in fitting if blocks // b % 2 == 0]
    return max(even or fitting)


def _floats(integers: Expr) -> Expr:
    """16 integers of 16 bits as float32."""
    return T.cast(T.cast(integers, f"int32x{L}"), f"float32x{L}")
