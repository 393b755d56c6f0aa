"""Products of rows with a packed matrix of any format: y = x W^T, for one row or many.

    few rows: a block for 32 rows of W and 32 rows of x; a warp has every tile of its part of k:
        sums += tile . x                                        `matmul_tiles.py`
        y = scale of the row of x * (the sum of the sums of all parts, in order)
    many rows: a block for 128 rows of W and 64 of x            `matmul_many.py`

A row of y depends on its own row of x alone: the tensor cores compute columns of their second
operand each by itself, and how k is split depends on k alone. So its bits are the same in a batch
of any size.

x    uint32 [m, row_words(k)], as `activation.py` makes it
W    uint32 [n / 32, k / 32, stride] (`backends/cuda/formats.py`)
y    float32 [m, n]
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat, tensor_shape
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.matmul_many import MANY_ROWS, MANY_TILES, ManyRows
from mlc_llm.kernels.cuda.matmul_tiles import COLUMNS, GlobalRows, GlobalTile, TileProduct
from mlc_llm.kernels.cuda.planes import row_words, scale_word
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, grid
from mlc_llm.kernels.types import Buffer, Expr

TURNS = 4
"""How often a block multiplies a tile with 8 rows of x."""
ROWS = COLUMNS * TURNS
FEW = 128
"""Rows of x of which blocks are small. With more there are enough large ones."""
WARPS = 8
Fast = Literal["rounded", "skipped"]
MOST_TILES = 4
"""Tiles that a warp loads before it computes."""
MOST_WORDS = 32
"""Words of tiles that a thread loads before it computes."""


def largest_divisor(number: int, most: int) -> int:
    """The largest one that is not above `most`."""
    return next(one for one in range(min(number, most), 0, -1) if number % one == 0)


@cache
def matmul(
    n: int,
    k: int,
    fmt: WeightFormat,
    *,
    accumulate: bool = False,
    fast: Fast | None = None,
    planes: int = 2,
) -> PrimFunc:
    """Kernel of (x, W, fast, y). accumulate: adds to y. planes: of x, that are multiplied; with 1
    the low one is left out.

    fast    int32 [1]: how many of the first rows of x are fast. "rounded": of these the high plane
            is multiplied alone. "skipped": they get no result, because another kernel computes
            them. None: this argument is left out
    """
    shape, dtype = tensor_shape(fmt, n, k)
    fast_rows = fast
    few = FewRows(k, fmt, accumulate, planes=planes)
    many = ManyRows(k, fmt, few.parts, accumulate, planes)

    @T.prim_func(private=True)
    def multiply(x: T.handle, w: T.handle, fast: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        W = T.match_buffer(w, shape, dtype)
        FAST = T.match_buffer(fast, (1,), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 2 if fmt.planes * fmt.groups == 1 else 1})
        rounded = T.meta_var(FAST[0] if fast_rows == "rounded" else None)
        skipped = T.meta_var(FAST[0] if fast_rows == "skipped" else 0)
        block, turn = T.cta_id(
            [
                T.Select(m <= FEW, n // BLOCK, -(-n // (BLOCK * MANY_TILES))),
                grid(T.Select(m <= FEW, T.ceildiv(m, ROWS), T.ceildiv(m, MANY_ROWS))),
            ]
        )
        lane, warp = T.thread_id([WARP, WARPS])
        MEM = T.alloc_buffer(
            (max(few.memory, many.memory),), "uint32", scope="shared.dyn", align=128
        )
        acc = T.alloc_buffer((TURNS * 8,), "float32", scope="local")
        if m <= FEW:
            rows = T.meta_var(GlobalRows(X, k, turn * ROWS, m, fast=rounded, skipped=skipped))
            if T.And(turn * ROWS < m, turn * ROWS + ROWS > skipped):
                few.multiply(rows, W, block, lane, warp, acc)
                few.share(MEM, rows, lane, warp, acc)
                T.cuda.cta_sync()
                few.store(X, Y, MEM, block, rows, warp * WARP + lane)
        elif turn * MANY_ROWS + MANY_ROWS > skipped:
            many.multiply(
                *(X, W, Y, MEM, block, turn * MANY_ROWS, m),
                *(None if rounded is None else rounded - turn * MANY_ROWS, skipped),
                *(lane, warp, acc),
            )

    return without(multiply, "FAST") if fast is None else multiply


class FewRows:
    """Statements of `matmul` for up to 32 rows of x. Each of the first `parts` warps has a part of
    k."""

    def __init__(
        self,
        k: int,
        fmt: WeightFormat,
        accumulate: bool = False,
        start: int = 0,
        planes: int = 2,
    ) -> None:
        """start: the column of y where the product begins. planes: of x."""
        self.k, self.fmt, self.accumulate, self.start = k, fmt, accumulate, start
        self.product = TileProduct(fmt, planes)
        self.parts = largest_divisor(k // GROUP, WARPS)
        self.tiles = k // GROUP // self.parts
        most = min(MOST_TILES, MOST_WORDS // self.product.words)
        self.loaded = largest_divisor(self.tiles, max(most, 1))
        self.memory = self.parts * ROWS * (BLOCK + 1)

    @T.inline
    def multiply(self, rows, W, block, lane, warp, acc):
        """acc: the products with the tiles of a warp."""
        words = T.alloc_buffer((self.loaded * self.product.words,), "uint32", scope="local")
        scales = T.alloc_buffer((self.loaded * self.product.scales,), "uint32", scope="local")
        factors = T.alloc_buffer((self.product.factors,), "float32", scope="local")
        a = T.alloc_buffer((16,), "uint32", scope="local")
        for i in T.unroll(TURNS * 8):
            acc[i] = T.float32(0)
        if warp < self.parts:
            for step in T.serial(self.tiles // self.loaded):
                first: T.let[T.int32] = warp * self.tiles + step * self.loaded
                for u in T.unroll(self.loaded):
                    source = T.meta_var(GlobalTile(self.fmt, W, block, first + u))
                    self.product.load(
                        *(source, lane, words, u * self.product.words),
                        *(scales, u * self.product.scales),
                    )
                for u in T.unroll(self.loaded):
                    self.product.find_factors(scales, u * self.product.scales, factors)
                    for plane in T.unroll(self.fmt.planes):
                        self.product.unpack_tile(words, u * self.product.words, plane, a)
                        for turn in T.unroll(TURNS):
                            if rows.is_there(turn * COLUMNS):
                                self.product.add_tile(
                                    *(rows, turn * COLUMNS, first + u, lane),
                                    *(a, factors, acc, turn * 8),
                                )

    def place(self, part: Expr, row: Expr, column: Expr) -> Expr:
        """Of a sum in shared memory."""
        return (part * ROWS + row) * (BLOCK + 1) + column

    @T.inline
    def share(self, MEM, rows, lane, warp, acc):
        """Puts the numbers of a warp where all threads read them."""
        if warp < self.parts:
            for turn in T.unroll(TURNS):
                if rows.is_there(turn * COLUMNS):
                    for i in T.unroll(8):
                        MEM[
                            self.place(
                                warp,
                                turn * COLUMNS + lane % 4 * 2 + i % 2,
                                i // 4 * 16 + i % 4 // 2 * 8 + lane // 4,
                            )
                        ] = T.reinterpret(acc[turn * 8 + i], dtype="uint32")

    def sum(self, MEM: Buffer, part: Expr, at: Expr) -> Expr:
        """Of a part; at: 32 * row + column."""
        word = MEM[self.place(part, at // BLOCK, at % BLOCK)]
        return T.reinterpret(word, dtype="float32")

    @T.inline
    def store(self, X, Y, MEM, block, rows, thread):
        """Adds the numbers of all parts, in order."""
        total = T.alloc_buffer((1,), "float32", scope="local")
        for turn in T.serial(ROWS * BLOCK // (WARPS * WARP)):
            at: T.let[T.int32] = turn * (WARPS * WARP) + thread
            if rows.is_wanted(at // BLOCK):
                row: T.let[T.int32] = rows.first + at // BLOCK
                total[0] = T.float32(0)
                for part in T.unroll(self.parts):
                    total[0] = total[0] + self.sum(MEM, part, at)
                total[0] = total[0] * T.reinterpret(
                    X[rows.row(at // BLOCK), scale_word(self.k)], dtype="float32"
                )
                if self.accumulate:
                    total[0] = total[0] + Y[row, block * BLOCK + at % BLOCK]
                Y[row, self.start + block * BLOCK + at % BLOCK] = total[0]
