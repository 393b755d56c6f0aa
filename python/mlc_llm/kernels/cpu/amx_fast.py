"""Fast products with fixed-point weights: bfloat16 on AMX tiles (`amx_fast_product.py`).

    rows below fast_rows[0]:  Y = (X * bfloat16(W without its unit)) * W.unit
    the other rows:           as in `fixed_point.py`

X          int32 [m + 16, row_width(k)]       activations (`bf16.py`)
W          int32 [n/32, k/group + 1, stride]  packed weights (`backends/cpu/formats.py`)
fast_rows  int32 [1]                          number of the first rows that are fast
Y          float32 [m, n]                     the result

A fast row's bits do not depend on the other rows.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx_blocking import VECTORS, Place
from mlc_llm.kernels.cpu.amx_exact import ExactProduct
from mlc_llm.kernels.cpu.amx_fast_product import FastProduct
from mlc_llm.kernels.cpu.amx_pipeline import AHEAD, Buffers, L, Pipeline, ask_for_word
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, round_pair, tiles_shape
from mlc_llm.kernels.cpu.fixed_point import least_gemm_rows
from mlc_llm.kernels.cpu.fixed_point_gemv import FixedPointGemv
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quant_blocks import row_width
from mlc_llm.kernels.cpu.scales import MINIMA, SCALES, unit_at, whole_at
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index


def fast_fixed_point_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for fast rows."""
    words = row_width(k)
    fast = Pipeline(n, FixedPointTiles(n, k, fmt, accumulate))
    gemv = FixedPointGemv(n, k, fmt, isa, accumulate)
    gemm = Pipeline(n, ExactProduct(k, fmt, accumulate, n // BLOCK))

    @T.prim_func(private=True, s_tir=True)
    def fast_and_exact_product(
        x: T.handle,
        W: T.Buffer((n // BLOCK, k // fmt.group + 1, fmt.stride), "int32"),
        fast_rows: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        X = T.match_buffer(x, (rows, words), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            tiles = T.decl_buffer(tiles_shape(m, k), "int32", data=X.data, elem_offset=0)
            exact_X = T.decl_buffer(
                (m - fast_rows[0], words), "int32", data=X.data,
                elem_offset=(fast_rows[0] + TILE_ROWS) * words,
            )  # fmt: skip
            exact_Y = T.decl_buffer(
                (m - fast_rows[0], n), "float32", data=Y.data, elem_offset=fast_rows[0] * n
            )
            if fast_rows[0] > 0:
                fast.multiply(tiles, W, Y, fast_rows[0])
            if m - fast_rows[0] >= least_gemm_rows(n, k):
                gemm.multiply(exact_X, W, exact_Y, m - fast_rows[0])
            elif fast_rows[0] < m:
                for block in T.parallel(gemv.apart):
                    align_stack()
                    gemv.multiply(exact_X, W, exact_Y, block, m - fast_rows[0])

    return fast_and_exact_product


class FixedPointTiles(FastProduct):
    """Sums count in units of the row of weights."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        assert fmt.words == 4, "a word for each of the four products of a step"
        super().__init__(n, k, accumulate)
        self.fmt = fmt

    def counted(self, sums: Expr, buffers: Buffers, place: Place, v: Index) -> Expr:
        return sums * unit_at(buffers.W, place.block, v * L, L)

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
        for v in T.serial(VECTORS):
            for t in T.serial(4):
                B[side, g, v, 4 * t + j, lanes_at(0, L)] = self.pair(W, block, group, j, v, t)

    def pair(self, W: Buffer, block: Index, group: Index, j: Index, v: Index, t: Index) -> Expr:
        """Nibbles t and t + 4 of word j as bfloat16, without their unit."""
        word = W[block, group, lanes_at(j * BLOCK + v * L, L)]
        scale = _floats(whole_at(self.fmt, W, block, group, SCALES, v, L))
        low, high = (_number(word, bits, self.fmt.offset) * scale for bits in (4 * t, 4 * t + 16))
        if not self.fmt.has_minimum:
            return round_pair(low, high)
        shift = _floats(whole_at(self.fmt, W, block, group, MINIMA, v, L))
        return round_pair(low + shift, high + shift)


def _number(word: Expr, bits: Index, offset: int) -> Expr:
    """The nibbles from bit `bits` on less the offset, as float32: entries of a table. A conversion
    would wait for the unit that does all work with floats while tiles multiply."""
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id("llvm.x86.avx512.permvar.sf.512"),
        T.Ramp(T.float32(-offset), T.float32(1), L),
        T.shift_right(word, splat(bits, L)),
        dtype=f"float32x{L}",
    )


def _floats(integers: Expr) -> Expr:
    """16 integers of 16 bits as float32."""
    return T.cast(T.cast(integers, f"int32x{L}"), f"float32x{L}")
