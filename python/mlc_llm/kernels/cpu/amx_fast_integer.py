"""Fast products with packed integers as weights: bfloat16 on AMX tiles (`amx_fast_product.py`).

    rows below fast_rows[0]:  Y = X * bfloat16(W)
    the other rows:           as in `integer_matmul.py`

X          int32 [m + 16, k/group, group/2 + 6]  activations (`bf16.prepare_fast_integers`)
W          int32 [n/32, spans, stride]      packed weights (`backends/cpu/formats.py`)
fast_rows  int32 [1]                        number of the first rows that are fast
Y          float32 [m, n]                   the result

A fast row's bits do not depend on the other rows.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import VECTORS
from mlc_llm.kernels.cpu.amx_fast_product import FastProduct
from mlc_llm.kernels.cpu.amx_pipeline import L, Pipeline
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, round_pair, tiles_shape
from mlc_llm.kernels.cpu.integer_matmul import MatrixProduct, Rows
from mlc_llm.kernels.cpu.quantized_rows import quantized_width
from mlc_llm.kernels.cpu.tile_weights import PART_ROWS, tile_weights
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at


def fast_integer_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for fast rows."""
    groups, width = k // fmt.group, quantized_width(fmt.group)
    fast = Pipeline(n, UnpackedTiles(n, k, fmt, accumulate))
    exact = MatrixProduct([(range(n // BLOCK), isa.planes)], k, fmt, isa, accumulate)
    shape, _ = tensor_shape(fmt, n, k)

    @T.prim_func(private=True, s_tir=True)
    def fast_and_exact_product(
        x: T.handle, W: T.Buffer(shape, "int32"), fast_rows: T.Buffer((1,), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        X = T.match_buffer(x, (rows, groups, width), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            first: T.let[T.int32] = fast_rows[0]
            tiles = T.decl_buffer(tiles_shape(m, k), "int32", data=X.data, elem_offset=0)
            exact_X = T.decl_buffer(
                (m, groups, width), "int32", data=X.data, elem_offset=TILE_ROWS * groups * width
            )
            if first > 0:
                fast.multiply(tiles, W, Y, first)
            if m > first:
                exact.multiply(Rows(None, None, exact_X), W, Y, first, m - first, None)

    return fast_and_exact_product


class UnpackedTiles(FastProduct):
    """Weights are unpacked with their scales, so a sum is a result."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        super().__init__(n, k, accumulate)
        self.weights = tile_weights(fmt)

    @T.inline
    def fill(self, W, B, side, place, group, part):
        """Four rows of both tiles."""
        whole: T.let[T.int32] = place.k_block * self.k_block_groups + group
        for v in T.serial(VECTORS):
            for i in T.serial(PART_ROWS):
                row = T.meta_var(self.weights.row(part, i))
                B[side, group, v, row, lanes_at(0, L)] = round_pair(
                    self.weights.value(W, place.block, whole, v, row),
                    self.weights.value(W, place.block, whole, v, row + ROWS),
                )
