"""Products of nearly float32's accuracy in bfloat16 on AMX tiles (`amx_fast_product.py`).

    Y = low(X) high(W) + high(X) high(W) + high(X) low(W)

X  int32 [m + 16, k]             activations (`split.py`)
W  int32 [n/32, spans, stride], or float [n/32, k, 32]  packed weights (`backends/cpu/formats.py`)
Y  float32 [m, n]                the result
B  int32 [2, groups, 4, 16, 16]  two high tiles of W, then two low ones

Both parts of a number hold 16 of its bits, so what is left out is some 2^-16 of each product. The
sums stay in the tiles over all columns of a k block; those of integers leave them for each group's
scale. They are added in another order than on vectors. So these products are for texts that are
always computed whole: their rows have the same bits in every batch, but a decoder's tokens
would differ from those that come one at a time.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import VECTORS
from mlc_llm.kernels.cpu.amx_fast_product import FastProduct
from mlc_llm.kernels.cpu.amx_pipeline import Chunk, L, Pipeline
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, round_pair
from mlc_llm.kernels.cpu.quant_blocks import GROUP
from mlc_llm.kernels.cpu.split import HIGH, rest_of_pair, split_shape
from mlc_llm.kernels.cpu.tile_weights import PART_ROWS, tile_weights
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index


def can_split(fmt: WeightFormat, isa: Isa, k: int) -> bool:
    """Whether there is such a product. Fixed-point weights have an exact one on tiles of bytes."""
    return isa.amx_tiles and not fmt.is_fixed_point and k % GROUP == 0


def split_matmul(n: int, k: int, fmt: WeightFormat, *, accumulate: bool) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for whole texts."""
    pipeline = Pipeline(n, SplitTiles(n, k, fmt, accumulate))
    shape, dtype = tensor_shape(fmt, n, k)

    @T.prim_func(private=True, s_tir=True)
    def split_product(x: T.handle, W: T.Buffer(shape, dtype), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m + TILE_ROWS, k), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            tiles = T.decl_buffer(split_shape(m, k), "int32", data=X.data, elem_offset=0)
            pipeline.multiply(tiles, W, Y, m)

    return split_product


class SplitTiles(FastProduct):
    """A step has three passes: low times high, high times high, high times low."""

    passes = 3
    w_tiles = 4

    def __init__(self, n: int, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        super().__init__(n, k, accumulate, parts=2)
        self.weights = tile_weights(fmt)

    def w_tile(self, turn: Index, w: Index) -> Index:
        return turn // 2 * VECTORS + w

    def loads(self, turn: Index) -> tuple[Expr | bool, Expr | bool]:
        return turn < 2, turn != 1

    def x_tile(
        self, X: Buffer, chunk: Chunk, row_block: Expr, k_block: Expr, step: Expr, turn: Index,
        x: Index,
    ) -> Expr:  # fmt: skip
        tile, group = self.row_tile(chunk, row_block, x), k_block * self.k_block_groups + step
        return T.address_of(X[tile, group, T.min(turn, HIGH), 0, 0])

    @T.inline
    def fill(self, W, B, side, place, group, part):
        """Four rows of all tiles behind each third product. The loops are no slower than unrolled
        ones, which take five times as long to compile."""
        if part % self.passes == 0:
            for v in T.serial(VECTORS):
                for i in T.serial(PART_ROWS):
                    self.fill_row(
                        *(W, B, side, place.block, group),
                        place.k_block * self.k_block_groups + group,
                        *(v, self.weights.row(part // self.passes, i)),
                    )

    @T.inline
    def fill_row(self, W, B, side, block, group, whole, v, row):
        """One row of both tiles of vector v; group `whole` of a row is group `group` of B."""
        first: T.let[T.float32x16] = self.weights.value(W, block, whole, v, row)
        second: T.let[T.float32x16] = self.weights.value(W, block, whole, v, row + ROWS)
        high: T.let[T.int32x16] = round_pair(first, second)
        B[side, group, v, row, lanes_at(0, L)] = high
        B[side, group, VECTORS + v, row, lanes_at(0, L)] = rest_of_pair(first, second, high)
