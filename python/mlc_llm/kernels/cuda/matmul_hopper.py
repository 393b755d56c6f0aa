"""Products of many rows by `wgmma`, the tensor cores' instructions of sm_90a: y = x W^T.

    a block of four warps for 128 rows of W and 64 of x; a warp has a tile of W
    for each tile of k:
        its rows of x, which threads have read ahead, go to shared memory
        for each half of the tiles: sums = values . x        wgmma m64n64k16, values from registers
            acc += scale * sums

No model uses it: no GPU has run it yet, and its sums have another order than those of `matmul.py`.
`benchmarks/gpu_products.py` compares both. It multiplies formats of one plane that have groups of
32 columns and no minima.

In shared memory 8 rows of x and 8 numbers of each lie together (a core matrix). The numbers are in
the order in which a thread has those of W (`backends/cuda/formats.py`).
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat, tensor_shape
from mlc_llm.kernels.cuda.matmul_tiles import GlobalTile, TileProduct
from mlc_llm.kernels.cuda.planes import low_start, row_words, scale_word
from mlc_llm.kernels.cuda.threads import QUAD, SCHEDULED, WARP, grid

TILES = 4
"""Of rows of W: a warp each."""
ROWS = 64
"""Of x."""
_TILE_WORDS = GROUP // 2
_CORE_WORDS, _CORES = 32, 4
"""Words of a core matrix, and how many of them 8 rows of x have for a tile of k."""
_PLANE_WORDS = ROWS * _TILE_WORDS
_STEP = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
_SUMS = ROWS // 2
"""Of a half of the tiles that a thread has."""


def can_multiply(fmt: WeightFormat) -> bool:
    """Whether the kernel takes a format."""
    return fmt.groups == 1 and fmt.planes == 1 and not fmt.has_minimum


@cache
def matmul_hopper(n: int, k: int, fmt: WeightFormat, *, planes: int = 2) -> PrimFunc:
    """Kernel of (x, W, y), as `matmul.matmul`. planes: of x; with 1 the low one is left out."""
    assert can_multiply(fmt) and n % (TILES * BLOCK) == 0
    shape, dtype = tensor_shape(fmt, n, k)
    rows = _Rows(k, fmt, planes)

    @T.prim_func(private=True)
    def multiply(x: T.handle, w: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        W = T.match_buffer(w, shape, dtype)
        Y = T.match_buffer(y, (m, n), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 2})
        block, turn = T.cta_id([n // (TILES * BLOCK), grid(T.ceildiv(m, ROWS))])
        lane, warp = T.thread_id([WARP, TILES])
        MEM = T.alloc_buffer((2 * planes * _PLANE_WORDS,), "uint32", scope="shared.dyn", align=128)
        ahead = T.alloc_buffer((planes * _TILE_WORDS // 2,), "uint32", scope="local")
        words = T.alloc_buffer((rows.product.words,), "uint32", scope="local")
        scales = T.alloc_buffer((rows.product.scales,), "uint32", scope="local")
        factors = T.alloc_buffer((rows.product.factors,), "float32", scope="local")
        a = T.alloc_buffer((16,), "uint32", scope="local")
        d = T.alloc_buffer((2 * _SUMS,), "float32", scope="local")
        acc = T.alloc_buffer((2 * _SUMS,), "float32", scope="local")
        desc = T.alloc_buffer((1,), "uint64", scope="local")
        thread: T.let[T.int32] = warp * WARP + lane
        for i in T.unroll(2 * _SUMS):
            acc[i] = T.float32(0)
        rows.read(X, turn * ROWS, m, 0, thread, ahead)
        for tile in T.serial(k // GROUP):
            start: T.let[T.int32] = tile % 2 * (planes * _PLANE_WORDS)
            rows.put(MEM, start, thread, ahead)
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()
            if tile + 1 < k // GROUP:
                rows.read(X, turn * ROWS, m, tile + 1, thread, ahead)
            source = T.meta_var(GlobalTile(fmt, W, block * TILES + warp, tile))
            rows.product.load(source, lane, words, 0, scales, 0)
            rows.product.find_factors(scales, 0, factors)
            rows.product.unpack_tile(words, 0, 0, a)
            rows.multiply(MEM, start, a, d, desc)
            for i in T.unroll(2 * _SUMS):
                acc[i] = acc[i] + d[i] * factors[i // _SUMS * 2 + i % 4 // 2]
        rows.store(X, Y, (block * TILES + warp) * BLOCK, turn * ROWS, m, lane, acc)

    return multiply


class _Rows:
    """Statements of `matmul_hopper`. A thread has a half of a row of x in each plane."""

    def __init__(self, k: int, fmt: WeightFormat, planes: int) -> None:
        self.k, self.planes = k, planes
        self.product = TileProduct(fmt)

    @T.inline
    def read(self, X, first, m, tile, thread, ahead):
        """ahead: two times four words of a row of x, of each plane."""
        for i in T.unroll(self.planes * _TILE_WORDS // 2):
            ahead[i] = T.uint32(0)
        if first + thread // 2 < m:
            for plane in T.unroll(self.planes):
                for t in T.unroll(2):
                    for j in T.vectorized(QUAD):
                        ahead[(plane * 2 + t) * QUAD + j] = X[
                            first + thread // 2,
                            plane * low_start(self.k)
                            + tile * _TILE_WORDS
                            + (thread % 2 * 2 + t) * QUAD
                            + j,
                        ]

    @T.inline
    def put(self, MEM, start, thread, ahead):
        """Word j of the four that a thread of `formats.py` has at once goes to core matrix j."""
        for plane in T.unroll(self.planes):
            for j in T.unroll(_CORES):
                for t in T.vectorized(2):
                    MEM[
                        start
                        + plane * _PLANE_WORDS
                        + (thread // 16 * _CORES + j) * _CORE_WORDS
                        + thread // 2 % 8 * QUAD
                        + thread % 2 * 2
                        + t
                    ] = ahead[(plane * 2 + t) * QUAD + j]

    @T.inline
    def multiply(self, MEM, start, a, d, desc):
        """d: the sums of both halves of the tiles of all warps with 64 rows of x."""
        T.ptx.wgmma.fence.sync.aligned()
        for plane in T.unroll(self.planes):
            for step in T.unroll(2):
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
                        *(desc[0], T.ptx.pred(plane + step > 0), 1, 1, 0),
                    )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)

    @T.inline
    def store(self, X, Y, column, first, m, lane, acc):
        """Writes the numbers of a warp."""
        for i in T.unroll(2 * _SUMS):
            half = T.meta_var(i // _SUMS)
            row: T.let[T.int32] = first + i % _SUMS // 4 * 8 + lane % 4 * 2 + i % 2
            at: T.let[T.int32] = column + half * 16 + i % 4 // 2 * 8 + lane // 4
            if row < m:
                Y[row, at] = acc[i] * T.reinterpret(X[row, scale_word(self.k)], dtype="float32")
