"""Products of many rows of x: tiles of W and of x go through shared memory.

    a block has 4 tiles of rows of W and 64 rows of x; a warp a tile, and half of the rows of x
    for each tile of k:
        those of the next ones are copied into shared memory meanwhile (`cp.async`)
        acc += tile . x                                         `matmul_tiles.py`
        at the end of a part of k: total += acc, and acc begins anew

So the same numbers are added in the same order as by the warps that have a part each (`matmul.py`).
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat
from mlc_llm.kernels.cuda.matmul_tiles import COLUMNS, SUMS, SharedRows, SharedTile, TileProduct
from mlc_llm.kernels.cuda.planes import low_start, scale_word, sum_start
from mlc_llm.kernels.cuda.tensor_cores import commit, copy, copy_two, wait, words_at
from mlc_llm.kernels.cuda.threads import QUAD, WARP
from mlc_llm.kernels.types import Expr

MANY_TILES = 4
"""Tiles of rows of W that a block has."""
TURNS = 4
"""How often a warp multiplies a tile with 8 rows of x."""
HALVES = 2
"""Warps that share a tile."""
MANY_ROWS = HALVES * TURNS * COLUMNS
THREADS = MANY_TILES * HALVES * WARP
_TILE_WORDS = GROUP // 2
_MOST_STAGES, _MOST_WORDS = 4, 20000
"""Of shared memory: two blocks of a multiprocessor have so much on every GPU but the smallest."""


class ManyRows:
    """Statements of `matmul`."""

    def __init__(
        self, k: int, fmt: WeightFormat, parts: int, accumulate: bool, planes: int
    ) -> None:
        self.k, self.fmt, self.accumulate, self.planes = k, fmt, accumulate, planes
        self.product = TileProduct(fmt, planes)
        self.tiles = k // GROUP
        self.of_part = self.tiles // parts
        self.tile_words = fmt.unit_words + fmt.stride
        self.rows_start = MANY_TILES * self.tile_words
        sums = MANY_ROWS * SUMS if fmt.has_minimum else 0
        self.sums_start = self.rows_start + planes * MANY_ROWS * _TILE_WORDS
        self.stage = self.sums_start + sums
        self.stages = max(2, min(_MOST_STAGES, _MOST_WORDS // self.stage))
        self.memory = self.stages * self.stage

    @T.inline
    def multiply(self, X, W, Y, MEM, block, first, m, fast, skipped, lane, warp, acc):
        """The products of a block: rows of x from `first` on. fast: how many of them are fast.
        skipped: so many of the first rows of x get no result."""
        total = T.alloc_buffer((TURNS * 8,), "float32", scope="local")
        for i in T.unroll(TURNS * 8):
            acc[i] = T.float32(0)
            total[i] = T.float32(0)
        for ahead in T.serial(self.stages - 1):
            self.copy_tile(X, W, MEM, block, first, m, ahead, ahead, warp * WARP + lane)
        for tile in T.serial(self.tiles):
            wait(self.stages - 2)
            T.cuda.cta_sync()
            self.copy_tile(
                *(X, W, MEM, block, first, m, tile + self.stages - 1),
                *((tile + self.stages - 1) % self.stages, warp * WARP + lane),
            )
            self.add(MEM, tile % self.stages * self.stage, tile, fast, lane, warp, acc)
            if tile % self.of_part == self.of_part - 1:
                for i in T.unroll(TURNS * 8):
                    total[i] = total[i] + acc[i]
                    acc[i] = T.float32(0)
        self.store(X, Y, block, first, m, skipped, lane, warp, total)

    @T.inline
    def copy_tile(self, X, W, MEM, block, first, m, tile, slot, thread):
        """Begins to copy a tile of k, if there is one."""
        start: T.let[T.int32] = slot * self.stage
        if tile < self.tiles:
            self.copy_weights(W, MEM, block, tile, start, thread)
            chunks = T.meta_var(_TILE_WORDS // QUAD)
            for turn in T.unroll(self.planes * MANY_ROWS * chunks // THREADS):
                i: T.let[T.int32] = turn * THREADS + thread
                row: T.let[T.int32] = i // chunks % MANY_ROWS
                plane: T.let[T.int32] = i // (chunks * MANY_ROWS)
                copy(
                    words_at(MEM, start + self.rows_start + i * QUAD),
                    X.ptr_to(
                        [
                            T.min(first + row, m - 1),
                            plane * low_start(self.k) + tile * _TILE_WORDS + i % chunks * QUAD,
                        ]
                    ),
                    first + row < m,
                )
            if self.fmt.has_minimum:
                if thread < MANY_ROWS:
                    copy_two(
                        words_at(MEM, start + self.sums_start + thread * SUMS),
                        X.ptr_to([T.min(first + thread, m - 1), sum_start(self.k) + tile * SUMS]),
                        first + thread < m,
                    )
        commit()

    @T.inline
    def copy_weights(self, W, MEM, block, tile, start, thread):
        """The tiles of W, each behind the units of its span."""
        chunks = T.meta_var(self.tile_words // QUAD)
        blocks = T.meta_var(W.shape[0])
        for turn in T.serial(T.ceildiv(MANY_TILES * chunks, THREADS)):
            i: T.let[T.int32] = turn * THREADS + thread
            if i < MANY_TILES * chunks:
                own: T.let[T.int32] = block * MANY_TILES + i // chunks
                copy(
                    words_at(MEM, start + i * QUAD),
                    W.ptr_to(
                        [
                            T.min(own, blocks - 1),
                            tile // self.fmt.span,
                            self.word_of(tile, i % chunks * QUAD),
                        ]
                    ),
                    own < blocks,
                )

    def word_of(self, tile: Expr, i: Expr) -> Expr:
        """Where word i of a copied tile comes from: the units, then the tile itself."""
        if not self.fmt.has_units:
            return i
        return T.Select(i < self.fmt.unit_words, i, tile % self.fmt.span * self.fmt.stride + i)

    @T.inline
    def add(self, MEM, start, tile, fast, lane, warp, acc):
        """acc: with the products of a tile of k."""
        words = T.alloc_buffer((self.product.words,), "uint32", scope="local")
        scales = T.alloc_buffer((self.product.scales,), "uint32", scope="local")
        factors = T.alloc_buffer((self.product.factors,), "float32", scope="local")
        a = T.alloc_buffer((16,), "uint32", scope="local")
        source = T.meta_var(SharedTile(self.fmt, MEM, start + warp % MANY_TILES * self.tile_words))
        rows = T.meta_var(
            SharedRows(
                *(MEM, start + self.rows_start, MANY_ROWS),
                *(warp // MANY_TILES * (TURNS * COLUMNS), fast, self.planes),
            )
        )
        self.product.load(source, lane, words, 0, scales, 0)
        self.product.find_factors(scales, 0, factors)
        for plane in T.unroll(self.fmt.planes):
            self.product.unpack_tile(words, 0, plane, a)
            for turn in T.unroll(TURNS):
                self.product.add_tile(
                    *(rows, turn * COLUMNS, tile, lane, a, factors, acc, turn * 8)
                )

    @T.inline
    def store(self, X, Y, block, first, m, skipped, lane, warp, total):
        """Writes the numbers of a warp."""
        n = T.meta_var(Y.shape[1])
        for turn in T.unroll(TURNS):
            for i in T.unroll(8):
                row: T.let[T.int32] = (
                    first + (warp // MANY_TILES * TURNS + turn) * COLUMNS + lane % 4 * 2 + i % 2
                )
                column: T.let[T.int32] = (
                    (block * MANY_TILES + warp % MANY_TILES) * BLOCK
                    + i // 4 * 16
                    + i % 4 // 2 * 8
                    + lane // 4
                )
                if T.And(T.And(row < m, T.Not(row < skipped)), column < n):
                    self.put(X, Y, row, column, total, turn * 8 + i)

    @T.inline
    def put(self, X, Y, row, column, total, at):
        """One number."""
        total[at] = total[at] * T.reinterpret(X[row, scale_word(self.k)], dtype="float32")
        if self.accumulate:
            total[at] = total[at] + Y[row, column]
        Y[row, column] = total[at]
