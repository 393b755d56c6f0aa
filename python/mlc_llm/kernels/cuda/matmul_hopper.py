"""Products of many rows by `wgmma`, the tensor cores' instructions of sm_90a: y = x W^T.

    a block of four warps for 128 rows of W and 64 of x; a warp has a tile of W
    for each tile of k:
        its rows of x, which threads have read ahead, go to shared memory
        a warp reads its next tile of W ahead
        for each group of columns, for each half of the tiles:
            sums = values . x                           wgmma m64n64k16, values from registers
            acc += scale * sums  [+ minimum * (sum of x)]

Models compute the fast tokens of prompts with it, by one plane of x (`backends/cuda/ops.py`). Its
sums have another order than those of `matmul.py`, so a fast token never goes there, however few
there are. It multiplies formats of one plane.

In shared memory 8 rows of x and 8 numbers of each lie together (a core matrix). The numbers are in
the order in which a thread has those of W (`backends/cuda/formats.py`). Behind them are the sums.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat, tensor_shape
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.matmul_tiles import SUMS, GlobalTile, TileProduct
from mlc_llm.kernels.cuda.planes import low_start, row_words, scale_word, sum_start
from mlc_llm.kernels.cuda.threads import QUAD, SCHEDULED, WARP, grid
from mlc_llm.kernels.types import Buffer, Expr, Index

ARCHITECTURE = "sm_90a"
"""The only one that has the instruction."""
TILES = 4
"""Of rows of W: a warp each."""
ROWS = 64
"""Of x."""
_TILE_WORDS = GROUP // 2
_HALF_WORDS = _TILE_WORDS // 2
_CORE_WORDS, _CORES = 32, 4
"""Words of a core matrix, and how many of them 8 rows of x have for a tile of k."""
_PLANE_WORDS = ROWS * _TILE_WORDS
_STEP = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
_FMA = "fma.rn.f32"
_SUMS = ROWS // 2
"""Of a half of the tiles that a thread has."""


def can_multiply(fmt: WeightFormat) -> bool:
    """Whether the kernel takes a format."""
    return fmt.planes == 1


@cache
def matmul_hopper(
    n: int,
    k: int,
    fmt: WeightFormat,
    *,
    planes: int = 2,
    accumulate: bool = False,
    has_fast: bool = False,
) -> PrimFunc:
    """Kernel of (x, W, fast, y), as `matmul.matmul`. planes: of x; with 1 the low one is left out.

    fast    int32 [1]: so many of the first rows of x are computed, and the others get no result;
            it is there only if `has_fast`
    """
    assert can_multiply(fmt)
    shape, dtype = tensor_shape(fmt, n, k)
    rows = _Rows(k, fmt, planes, accumulate)

    @T.prim_func(private=True)
    def multiply(x: T.handle, w: T.handle, fast: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        W = T.match_buffer(w, shape, dtype)
        FAST = T.match_buffer(fast, (1,), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 2})
        end = T.meta_var(T.min(m, FAST[0]) if has_fast else m)
        block, turn = T.cta_id([-(-n // (TILES * BLOCK)), grid(T.ceildiv(m, ROWS))])
        lane, warp = T.thread_id([WARP, TILES])
        MEM = T.alloc_buffer((2 * rows.stage,), "uint32", scope="shared.dyn", align=128)
        acc = T.alloc_buffer((2 * _SUMS,), "float32", scope="local")
        if turn * ROWS < end:
            rows.multiply(X, W, MEM, block, turn * ROWS, end, lane, warp, acc)
            rows.store(X, Y, (block * TILES + warp) * BLOCK, turn * ROWS, end, lane, acc)

    return multiply if has_fast else without(multiply, "FAST")


class _Rows:
    """Statements of `matmul_hopper`. A thread has a half of a row of x in each plane, and one of
    its two sums."""

    def __init__(self, k: int, fmt: WeightFormat, planes: int, accumulate: bool) -> None:
        self.k, self.fmt, self.planes, self.accumulate = k, fmt, planes, accumulate
        self.product = TileProduct(fmt)
        self.tiles = k // GROUP
        self.sums_start = planes * _PLANE_WORDS
        self.ahead = planes * _HALF_WORDS + int(fmt.has_minimum)
        self.stage = self.sums_start + (ROWS * SUMS if fmt.has_minimum else 0)

    @T.inline
    def multiply(self, X, W, MEM, block, first, end, lane, warp, acc):
        """acc: the products of a warp's tiles of W with 64 rows of x."""
        ahead = T.alloc_buffer((self.ahead,), "uint32", scope="local")
        words = T.alloc_buffer((self.product.words,), "uint32", scope="local")
        scales = T.alloc_buffer((self.product.scales,), "uint32", scope="local")
        factors = T.alloc_buffer((self.product.factors,), "float32", scope="local")
        a = T.alloc_buffer((16,), "uint32", scope="local")
        thread: T.let[T.int32] = warp * WARP + lane
        own: T.let[T.int32] = T.min(block * TILES + warp, W.shape[0] - 1)
        for i in T.unroll(2 * _SUMS):
            acc[i] = T.float32(0)
        self.read(X, first, end, 0, thread, ahead)
        self.product.load(GlobalTile(self.fmt, W, own, T.int32(0)), lane, words, 0, scales, 0)
        for tile in T.serial(self.tiles):
            start: T.let[T.int32] = tile % 2 * self.stage
            self.put(MEM, start, thread, ahead)
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()
            self.product.find_factors(scales, 0, factors)
            self.product.unpack_tile(words, 0, 0, a)
            if tile + 1 < self.tiles:
                self.read(X, first, end, tile + 1, thread, ahead)
                source = T.meta_var(GlobalTile(self.fmt, W, own, tile + 1))
                self.product.load(source, lane, words, 0, scales, 0)
            self.add(MEM, start, lane, a, factors, acc)

    @T.inline
    def read(self, X, first, end, tile, thread, ahead):
        """ahead: two times four words of a row of x, of each plane, and a sum."""
        for i in T.unroll(self.ahead):
            ahead[i] = T.uint32(0)
        if first + thread // 2 < end:
            for plane in T.unroll(self.planes):
                for t in T.unroll(2):
                    for j in T.vectorized(QUAD):
                        ahead[plane * _HALF_WORDS + t * QUAD + j] = X[
                            first + thread // 2,
                            plane * low_start(self.k)
                            + tile * _TILE_WORDS
                            + thread % 2 * _HALF_WORDS
                            + t * QUAD
                            + j,
                        ]
            if self.fmt.has_minimum:
                ahead[self.planes * _HALF_WORDS] = X[
                    first + thread // 2, sum_start(self.k) + tile * SUMS + thread % 2
                ]

    @T.inline
    def put(self, MEM, start, thread, ahead):
        """Words go where `place` says."""
        several = T.meta_var(2 if self.fmt.groups == 1 else 4)
        for plane in T.unroll(self.planes):
            for core in T.unroll(_HALF_WORDS // several):
                for t in T.vectorized(several):
                    MEM[start + plane * _PLANE_WORDS + self.place(thread, core) + t] = ahead[
                        plane * _HALF_WORDS + t * (_HALF_WORDS // several) + core
                    ]
        if self.fmt.has_minimum:
            MEM[start + self.sums_start + thread] = ahead[self.planes * _HALF_WORDS]

    def place(self, thread: Expr, core: Index) -> Expr:
        """Where the words of a half of a row begin in a core matrix.

        With groups of 32 word j of the four that a thread of `formats.py` has at once goes to core
        matrix j, and a half of a row has those of two threads. With groups of 16 it has all words
        of two core matrices."""
        row = thread // 16 * _CORES * _CORE_WORDS + thread // 2 % 8 * QUAD
        if self.fmt.groups == 1:
            return row + core * _CORE_WORDS + thread % 2 * 2
        return row + (thread % 2 * 2 + core) * _CORE_WORDS

    @T.inline
    def add(self, MEM, start, lane, a, factors, acc):
        """acc: with the products of a tile of k."""
        d = T.alloc_buffer((2 * _SUMS,), "float32", scope="local")
        desc = T.alloc_buffer((1,), "uint64", scope="local")
        for group in T.unroll(self.fmt.groups):
            self.find(MEM, start, group, a, d, desc)
            for i in T.unroll(2 * _SUMS):
                T.ptx[_FMA](acc[i], d[i], factors[group * 4 + i // _SUMS * 2 + i % 4 // 2], acc[i])
        if self.fmt.has_minimum:
            for turn in T.unroll(ROWS // 8):
                for c in T.unroll(2):
                    self.add_minima(MEM, start, turn, c, lane, factors, acc)

    @T.inline
    def find(self, MEM, start, group, a, d, desc):
        """d: the sums of both halves of the tiles of all warps with 64 rows of x, for a group of
        columns."""
        steps = T.meta_var(2 // self.fmt.groups)
        T.ptx.wgmma.fence.sync.aligned()
        for plane in T.unroll(self.planes):
            for one in T.unroll(steps):
                step = T.meta_var(group + one)
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(desc[0]),
                    MEM.ptr_to([start + plane * _PLANE_WORDS + step * 2 * _CORE_WORDS]),
                    _CORE_WORDS // 4,
                    _CORES * _CORE_WORDS // 4,
                    0,
                )
                for half in T.unroll(2):
                    T.ptx[_STEP](
                        *[d[half * _SUMS + i] for i in range(_SUMS)],
                        *[a[(half * 2 + step) * 4 + i] for i in range(4)],
                        *(desc[0], T.ptx.pred(plane + one > 0), 1, 1, 0),
                    )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)

    @T.inline
    def add_minima(self, MEM, start, turn, c, lane, factors, acc):
        """acc: with the minima of a tile times the sums of a row of x."""
        total = T.alloc_buffer((SUMS,), "float32", scope="local")
        for group in T.unroll(SUMS):
            total[group] = self.sum(MEM, start, turn * 8 + lane % 4 * 2 + c, group)
        if self.fmt.groups == 1:
            total[0] = total[0] + total[1]
        for group in T.unroll(self.fmt.groups):
            for half in T.unroll(2):
                for h in T.unroll(2):
                    at = T.meta_var(half * _SUMS + turn * 4 + h * 2 + c)
                    T.ptx[_FMA](
                        *(acc[at], total[group]),
                        *(factors[(self.fmt.groups + group) * 4 + half * 2 + h], acc[at]),
                    )

    def sum(self, MEM: Buffer, start: Expr, row: Expr, group: Index) -> Expr:
        """The sum of 16 columns of a row."""
        return T.reinterpret(MEM[start + self.sums_start + row * SUMS + group], dtype="float32")

    @T.inline
    def store(self, X, Y, column, first, end, lane, acc):
        """Writes the numbers of a warp, if its tile is one of the matrix."""
        for i in T.unroll(2 * _SUMS):
            half = T.meta_var(i // _SUMS)
            row: T.let[T.int32] = first + i % _SUMS // 4 * 8 + lane % 4 * 2 + i % 2
            at: T.let[T.int32] = column + half * 16 + i % 4 // 2 * 8 + lane // 4
            if T.And(row < end, column < Y.shape[1]):
                acc[i] = acc[i] * T.reinterpret(X[row, scale_word(self.k)], dtype="float32")
                if self.accumulate:
                    acc[i] = acc[i] + Y[row, at]
                Y[row, at] = acc[i]
