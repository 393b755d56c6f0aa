"""Products in bfloat16 on AMX tiles (`amx_pipeline.py`): what formats of weights share.

    C = X * bfloat16(W)                    for each k block
    Y = sum of C over k blocks, in their order

X  int32 [tiles, groups, 16, 16]       tiles of 16 rows as bfloat16 (`bf16.py`)
B  int32 [2, groups, 2, 16, 16]        tiles of the first, then of the second 16 rows of W
C  float32 [4, 16, 16]                 two tiles of rows times two of weights

A row block is 32 rows, a weight block a column block and some groups, a step a group of 32
columns. Row i of a tile of weights holds columns i and i + 16 of the group, as words of X do.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_blocking import VECTORS, Blocking, Place, blocks_together
from mlc_llm.kernels.cpu.amx_pipeline import AmxProduct, Buffers, Chunk, L
from mlc_llm.kernels.cpu.quant_blocks import GROUP
from mlc_llm.kernels.cpu.row_block import put
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index

K_BLOCK_GROUPS = 8
"""Groups of a k block, at most. Its weights, those that are made for the next one, and a row block
pass through the first cache side by side; of 16 groups they would push each other out."""
MOST_GROUPS = 18
"""Groups of a row up to which they are one k block, which has no sums to keep."""
WHOLE = 1024
"""Columns up to which the rows of a usual prompt stay in the second cache."""
MOST_BLOCKS = 8
"""Column blocks that a k block of longer rows meets before the next one, at most."""


class FastProduct(AmxProduct):
    """See `AmxProduct`. A format says how `fill` unpacks it, and may say what a sum
    counts."""

    x_row_bytes = amx.ROW_BYTES

    def __init__(self, n: int, k: int, accumulate: bool, parts: int = 1) -> None:
        """parts: of each number, which are tiles of their own."""
        assert k % GROUP == 0, "a step has whole groups"
        self.accumulate, groups = accumulate, k // GROUP
        most = groups if groups * parts <= MOST_GROUPS else K_BLOCK_GROUPS // parts
        self.k_block_groups = -(-groups // -(-groups // most))
        self.k_blocks = -(-groups // self.k_block_groups)
        self.blocking = Blocking(
            groups=groups,
            k_block_groups=self.k_block_groups,
            step_groups=1,
            row_tiles=2,
            vectors=VECTORS,
            sums=4,
            dtype="float32",
            row_words=parts * k // 2,
            task_blocks=blocks_together(n // BLOCK, MOST_BLOCKS) if parts * k > WHOLE else 1,
        )

    def counted(self, sums: Expr, buffers: Buffers, place: Place, v: Index) -> Expr:
        """Vector v of whole sums as results."""
        return sums

    def multiply(self, x: Index, w: Index) -> Expr:
        """X tiles are 16 rows each, W tiles 16 rows of weights each."""
        return amx.multiply_floats(amx.SUMS + 2 * x + w, amx.X_TILES + x, amx.W_TILES + w)

    def first_row(self, chunk: Chunk, tile: Index) -> Index:
        """The last tile may have rows that are not there."""
        return chunk.start + tile * ROWS

    def x_tile(
        self, X: Buffer, chunk: Chunk, row_block: Expr, k_block: Expr, step: Expr, turn: Index,
        x: Index,
    ) -> Expr:  # fmt: skip
        """Both tiles have the same columns."""
        group = k_block * self.k_block_groups + step
        return T.address_of(X[self.row_tile(chunk, row_block, x), group, 0, 0])

    def row_tile(self, chunk: Chunk, row_block: Expr, x: Index) -> Expr:
        """The number of tile x (0 or 1) of a row block. The last one stands for one behind it."""
        last = T.ceildiv(chunk.m, ROWS) - 1
        return T.min(T.floordiv(chunk.start, ROWS) + 2 * row_block + x, last)

    @T.inline
    def finish_row(self, buffers, place, row, partial, tile, r):
        """Row r of two tiles of sums."""
        if place.k_block % self.k_blocks < self.k_blocks - 1:
            for v in T.unroll(VECTORS):
                buffers.F[partial, tile * ROWS + r, v, lanes_at(0, L)] = self.added(
                    buffers, place.k_block, partial, tile, r, v
                )
        else:
            for v in T.unroll(VECTORS):
                put(
                    *(buffers.Y, row, place.column + v * L),
                    self.counted(
                        self.added(buffers, place.k_block, partial, tile, r, v), buffers, place, v
                    ),
                    *(L, self.accumulate),
                )

    def added(
        self, buffers: Buffers, k_block: Index, partial: Index, tile: Index, r: Index, v: Index
    ) -> Expr:
        """Vector v of row r of a tile of rows in C plus that of F."""
        sums = buffers.C[VECTORS * tile + v, r, lanes_at(0, L)]
        if self.k_blocks == 1:
            return sums
        so_far = buffers.F[partial, tile * ROWS + r, v, lanes_at(0, L)]
        return sums + T.Select(k_block == 0, fsplat(0.0, L), so_far)
