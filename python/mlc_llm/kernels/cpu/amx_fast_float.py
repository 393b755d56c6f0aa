"""Fast products with 16-bit floats as weights: bfloat16 on AMX tiles (`amx_fast_product.py`).

    rows below fast_rows[0]:  Y = bfloat16(X) * bfloat16(W)
    the other rows:           as in `float_matmul.py`

X          float32 [m, k]              activations
W          float16 [n/32, k, 32], or int32 [n/32, k/2, 32] of bfloat16 (`formats.py`)
fast_rows  int32 [1]                   number of the first rows that are fast
Y          float32 [m, n]              the result

A fast row's bits do not depend on the other rows. Rows become tiles here, and not once for all
products that read them: that takes less time than the rest by far, and exact rows stay in place.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx_fast_integer import UnpackedTiles
from mlc_llm.kernels.cpu.amx_pipeline import Pipeline
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, L, round_pair, tiles_shape
from mlc_llm.kernels.cpu.float_matmul import FloatProduct
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quant_blocks import GROUP
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at


def has_fast_floats(fmt: WeightFormat, isa: Isa, k: int) -> bool:
    """Whether there is such a product for matrices of k columns."""
    return isa.amx_tiles and isa.fast and fmt.is_float and fmt.bits == 16 and k % GROUP == 0


def fast_float_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for fast rows."""
    fast = Pipeline(n, UnpackedTiles(n, k, fmt, accumulate))
    exact, (shape, dtype) = FloatProduct(n, k, fmt, isa, accumulate), tensor_shape(fmt, n, k)

    @T.inline
    def round_row(X, tiles, row):
        """A row of tiles."""
        for g in T.serial(k // GROUP):
            tiles[row // TILE_ROWS, g, row % TILE_ROWS, lanes_at(0, L)] = round_pair(
                X[row, lanes_at(g * GROUP, L)], X[row, lanes_at(g * GROUP + L, L)]
            )

    @T.prim_func(private=True, s_tir=True)
    def fast_and_exact_floats(
        x: T.handle, W: T.Buffer(shape, dtype), fast_rows: T.Buffer((1,), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            first: T.let[T.int32] = fast_rows[0]
            if first > 0:
                tiles = T.alloc_buffer(tiles_shape(m, k), "int32")
                for row in T.parallel(first):
                    round_row(X, tiles, row)
                fast.multiply(tiles, W, Y, first)
            if m > first:
                for block in T.parallel(exact.apart):
                    align_stack()
                    exact.multiply_rows(X, W, Y, block, first, m - first)

    return fast_and_exact_floats
