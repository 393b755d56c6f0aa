"""Products of rows with a packed matrix of 4, 8, 16 or 32 bits: y = x W^T, for one row or many.

    a block for 32 rows of W and 32 rows of x; a warp has every tile of its part of k:
        load a tile of W; its values become float16, exactly
        for each 8 rows of x: for each of two planes:     mma.m16n8k16, W being the first operand
            acc += scale * (values . x)  [+ minimum * (sum of x)]
    y = scale of the row of x * (the sum of acc over the warps, in order)

A row of y depends on its own row of x alone: the tensor cores compute columns of their second
operand each by itself, and how k is split depends on k alone. So its bits are the same in a batch
of any size.

x    uint32 [m, row_words(k)], as `activation.py` makes it
W    uint32 [n / 32, k / 32, stride] (`backends/cuda/formats.py`)
y    float32 [m, n]
"""

from __future__ import annotations

from functools import cache

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import (
    BLOCK,
    GROUP,
    PART_WORDS,
    SCALE_WORDS,
    WeightFormat,
    tensor_shape,
)
from mlc_llm.kernels.cuda.planes import low_start, row_words, scale_word, sum_start
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, grid
from mlc_llm.kernels.cuda.tiles import half_of
from mlc_llm.kernels.types import Expr

COLUMNS = 8
"""Rows of x that the tensor cores multiply at once."""
TURNS = 4
"""How often a block does that with a tile."""
ROWS = COLUMNS * TURNS
MOST_WARPS = 8
MOST_TILES = 4
"""Tiles that a warp loads before it computes."""
MOST_WORDS = 32
"""Words of tiles that a thread loads before it computes."""
_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
_FMA = "fma.rn.f16x2"


def largest_divisor(number: int, most: int) -> int:
    """The largest one that is not above `most`."""
    return next(one for one in range(min(number, most), 0, -1) if number % one == 0)


@cache
def matmul(n: int, k: int, fmt: WeightFormat, *, accumulate: bool = False) -> PrimFunc:
    """Kernel of (x, W, y). accumulate: adds to y."""
    shape, dtype = tensor_shape(fmt, n, k)
    product = _Product(k, fmt, accumulate)

    @T.prim_func(private=True)
    def multiply(x: T.handle, w: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        W = T.match_buffer(w, shape, dtype)
        Y = T.match_buffer(y, (m, n), "float32")
        T.device_entry()
        block, turn = T.cta_id([n // BLOCK, grid(T.ceildiv(m, ROWS))])
        lane, warp = T.thread_id([WARP, product.warps])
        acc = T.alloc_buffer((TURNS * 8,), "float32", scope="local")
        sums = T.alloc_buffer((product.warps, ROWS, BLOCK + 1), "float32", scope="shared")
        if turn * ROWS < m:
            product.multiply(X, W, block, turn * ROWS, m, lane, warp, acc)
            product.share(sums, turn * ROWS, m, lane, warp, acc)
            T.cuda.cta_sync()
            product.store(X, Y, sums, block, turn * ROWS, m, warp * WARP + lane)

    return multiply


def _with_1024(word: Expr, mask: int) -> Expr:
    return T.bitwise_or(T.bitwise_and(word, T.uint32(mask)), T.uint32(0x64006400))


def _pair(number: float) -> Expr:
    """The float16 of a number, twice in a word."""
    return T.uint32(np.float16(number).view(np.uint16).item() * 0x10001)


class _Product:
    """Statements of `matmul`. acc: of each turn the numbers that a thread has of two results of
    mma, as "Matrix Fragments for mma.m16n8k16" says: rows g and g + 8 of both halves of a tile."""

    def __init__(self, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        self.k, self.fmt, self.accumulate = k, fmt, accumulate
        self.warps = largest_divisor(k // GROUP, MOST_WARPS)
        self.tiles = k // GROUP // self.warps
        most = min(MOST_TILES, MOST_WORDS // (4 * fmt.parts))
        self.loaded = largest_divisor(self.tiles, most)
        self.kinds = 2 if fmt.has_minimum else 1

    @T.inline
    def multiply(self, X, W, block, first, m, lane, warp, acc):
        """acc: the products with the tiles of a warp."""
        words = T.alloc_buffer((self.loaded * self.fmt.parts * 4,), "uint32", scope="local")
        scales = T.alloc_buffer((self.loaded * 2 * self.kinds,), "uint32", scope="local")
        a = T.alloc_buffer((16,), "uint32", scope="local")
        for i in T.unroll(TURNS * 8):
            acc[i] = T.float32(0)
        for step in T.serial(self.tiles // self.loaded):
            for u in T.unroll(self.loaded):
                self.load(
                    W, block, warp * self.tiles + step * self.loaded + u, lane, u, words, scales
                )
            for u in T.unroll(self.loaded):
                for plane in T.unroll(self.fmt.planes):
                    self.unpack_tile(words, u * self.fmt.parts * 4, plane, a)
                    for turn in T.unroll(TURNS):
                        if first + turn * COLUMNS < m:
                            self.add_tile(
                                *(X, first + turn * COLUMNS, m, lane, turn * 8),
                                *(warp * self.tiles + step * self.loaded + u, a),
                                *(scales, u * 2 * self.kinds, acc),
                            )

    @T.inline
    def load(self, W, block, tile, lane, u, words, scales):
        """What a thread reads of a tile."""
        for part in T.unroll(self.fmt.parts):
            for j in T.vectorized(4):
                words[(u * self.fmt.parts + part) * 4 + j] = W[
                    block, tile, part * PART_WORDS + lane * 4 + j
                ]
        for kind in T.unroll(self.kinds):
            for j in T.vectorized(2):
                scales[(u * self.kinds + kind) * 2 + j] = W[
                    block, tile, self.fmt.scale_start + kind * SCALE_WORDS + lane // 4 * 2 + j
                ]

    @T.inline
    def unpack_tile(self, words, start, plane, a):
        """a: the values of a thread, of one plane of a tile of floats."""
        if self.fmt.is_float:
            for i in T.unroll(16):
                a[i] = words[start + plane * 16 + i]
        else:
            for i in T.unroll(4):
                self.unpack(words, start + i, i * 4, a)

    @T.inline
    def unpack(self, words, of_word, at, a):
        """a[at:at + 4]: the eight values of a product, less the offset, as pairs of float16.

        In float16 the bits 0x6400 are 1,024, and the last bit is 1: a value put below them is added
        to that, or 16 times it if it is put 4 bits higher.
        """
        for i in T.unroll(2):
            if self.fmt.bits == 8:
                self.put_pair(words[of_word + 4 * i], 1, at + 2 * i, a)
                self.put_pair(
                    T.shift_right(words[of_word + 4 * i], T.uint32(8)), 1, at + 2 * i + 1, a
                )
            else:
                self.put_pair(T.shift_right(words[of_word], T.uint32(8 * i)), 1, at + 2 * i, a)
                self.put_pair(T.shift_right(words[of_word], T.uint32(8 * i)), 16, at + 2 * i + 1, a)

    @T.inline
    def put_pair(self, word, factor, at, a):
        """a[at]: the lowest value of each half of a word, which stands there times that factor."""
        T.ptx[_FMA](
            *(a[at], _with_1024(word, factor * ((1 << self.fmt.bits) - 1) * 0x10001)),
            *(_pair(1 / factor), _pair(-1024.0 / factor - self.fmt.offset)),
        )

    @T.inline
    def add_tile(self, X, first, m, lane, at, tile, a, scales, of_tile, acc):
        """acc[at:at + 8]: with the products of a tile and 8 rows of x."""
        b = T.alloc_buffer((8,), "uint32", scope="local")
        d = T.alloc_buffer((8,), "float32", scope="local")
        for i in T.unroll(8):
            d[i] = T.float32(0)
            b[i] = T.uint32(0)
        if first + lane // 4 < m:
            for plane in T.unroll(2):
                for j in T.vectorized(4):
                    b[plane * 4 + j] = X[
                        first + lane // 4,
                        plane * low_start(self.k) + tile * (GROUP // 2) + lane % 4 * 4 + j,
                    ]
        for plane in T.unroll(2):
            for step in T.unroll(2):
                for half in T.unroll(2):
                    self.mma(d, half * 4, a, (half * 2 + step) * 4, b, plane * 4 + step * 2)
        for i in T.unroll(8):
            acc[at + i] = acc[at + i] + d[i] * half_of(scales[of_tile + i // 4], i % 4 // 2)
        if self.fmt.has_minimum:
            self.add_minima(X, first, m, lane, at, tile, scales, of_tile + 2, acc)

    @T.inline
    def mma(self, d, at, a, of_a, b, of_b):
        """d[at:at + 4] += 16 rows of a times 8 columns of b."""
        T.ptx[_MMA](
            *[d[at + i] for i in range(4)],
            *[a[of_a + i] for i in range(4)],
            *[b[of_b + i] for i in range(2)],
            *[d[at + i] for i in range(4)],
        )

    @T.inline
    def add_minima(self, X, first, m, lane, at, tile, minima, of_tile, acc):
        """acc[at:at + 8]: with the minima of a tile times the sums of its columns of x."""
        total = T.alloc_buffer((2,), "float32", scope="local")
        for c in T.unroll(2):
            total[c] = T.float32(0)
            if first + lane % 4 * 2 + c < m:
                total[c] = T.reinterpret(
                    X[first + lane % 4 * 2 + c, sum_start(self.k) + tile], dtype="float32"
                )
        for i in T.unroll(8):
            acc[at + i] = acc[at + i] + total[i % 2] * half_of(minima[of_tile + i // 4], i % 4 // 2)

    @T.inline
    def share(self, sums, first, m, lane, warp, acc):
        """Puts the numbers of a warp where all threads read them."""
        for turn in T.unroll(TURNS):
            if first + turn * COLUMNS < m:
                for i in T.unroll(8):
                    sums[
                        warp,
                        turn * COLUMNS + lane % 4 * 2 + i % 2,
                        i // 4 * 16 + i % 4 // 2 * 8 + lane // 4,
                    ] = acc[turn * 8 + i]

    @T.inline
    def store(self, X, Y, sums, block, first, m, thread):
        """Adds the numbers of all warps, in order."""
        threads = T.meta_var(self.warps * WARP)
        total = T.alloc_buffer((1,), "float32", scope="local")
        for part in T.serial(T.ceildiv(ROWS * BLOCK, threads)):
            at: T.let[T.int32] = part * threads + thread
            row: T.let[T.int32] = first + at // BLOCK
            if T.And(at < ROWS * BLOCK, row < m):
                total[0] = sums[0, at // BLOCK, at % BLOCK]
                for i in T.unroll(self.warps - 1):
                    total[0] = total[0] + sums[i + 1, at // BLOCK, at % BLOCK]
                total[0] = total[0] * T.reinterpret(X[row, scale_word(self.k)], dtype="float32")
                if self.accumulate:
                    total[0] = total[0] + Y[row, block * BLOCK + at % BLOCK]
                Y[row, block * BLOCK + at % BLOCK] = total[0]
