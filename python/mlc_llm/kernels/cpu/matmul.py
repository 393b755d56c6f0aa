"""Y[m, n] (+)= X[m, k] W[n, k]^T over packed weights: one kernel for vectors and matrices.

The sums of a row run over the groups in the same order whatever the number of rows, so a row's
result never depends on what else is in the batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.activation import SCALE, SCALED_SUM, SUM, description, quantized_width
from mlc_llm.kernels.cpu.bf16 import mixed_matmul
from mlc_llm.kernels.cpu.dot import bias, dot, weight_values, word_parts
from mlc_llm.kernels.cpu.fixed import fixed_matmul
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat

PREFETCH_BYTES = 10240
"""How far ahead weights are asked for, all streams together: the hardware's own prefetching stops
at each 4 KiB. The first rows of a block ask as they go; for the others the block is in cache."""
LINE = LINE_BYTES // 4


def has_coarse_rows(fmt: WeightFormat, isa: Isa) -> bool:
    """Whether there is a faster product: of bfloat16 on tiles, or of the upper of two planes."""
    return isa.coarse if fmt.is_fixed else isa.sums == 2 and not fmt.is_float


@cache
def matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool, coarse: bool = False
) -> tvm.tirx.PrimFunc:
    """Kernel for a weight matrix of n (a multiple of 32) rows and k columns.

    Arguments: the activations (see `activation.py`), W (see `formats.py`), Y float32 [m, n].
    accumulate: add to Y in place (the residual stream) instead of overwriting it.
    coarse (where `has_coarse_rows`): C int32 [1] comes before Y. The first C[0] rows of the
    activations count with 8 of their 16 bits, or all is bfloat16 (`bf16.py`).
    """
    assert has_coarse_rows(fmt, isa) or not coarse
    if fmt.is_float:
        return _float_weights(n, k, fmt, isa, accumulate)
    if fmt.is_fixed and coarse:
        return mixed_matmul(n, k, fmt, isa, accumulate=accumulate)
    if fmt.is_fixed:
        return fixed_matmul(n, k, fmt, isa, accumulate=accumulate)
    if not isa.integer:
        return _dequantised(n, k, fmt, isa, accumulate)
    build = _coarse if coarse else _integer
    return build(n, k, fmt, isa, accumulate)


def _streams(n: int, isa: Isa) -> int:
    """Blocks that a single row goes through side by side, each from another part of the matrix.

    Two keep the memory busy while the processor multiplies, where a processor follows each of them
    only so far ahead. Their sums fit where those of two rows fit; pairs that two threads could
    not share evenly would cost more than is won.
    """
    blocks = n // BLOCK
    return 2 if isa.row_tile > 1 and (blocks % 4 == 0 or (blocks % 2 == 0 and blocks >= 64)) else 1


def _integer_tiles(n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> Any:
    """Statements for `count` rows from `start` on, of which `planes` planes are multiplied.

    They compute block `block` of each stream: those apart by 1 / `_streams` of the matrix.
    """
    L, MB, G, S = isa.lanes, isa.row_tile, k // fmt.group, _streams(n, isa)
    V, words, stride, offset = BLOCK // L, fmt.words, fmt.stride, fmt.offset - bias(isa, fmt)
    lane, ahead = lanes_at(0, L), max(1, PREFETCH_BYTES // S // (4 * stride))
    apart = n // BLOCK // S

    def added(acc: Any, W: Any, at: Any, v: Any, X: Any, row: Any, p: Any) -> Any:
        """`acc` plus vector v of the words at (block, group, word) times plane p of a row."""
        block, g, j = at
        word = W[block, g, lanes_at(j * BLOCK + v * L, L)]
        return dot(isa, fmt, acc, word, lambda i: X[row, g, i], j, p)

    def group_sum(f: Any, whole: Any, low: Any, scale: Any, minimum: Any, x: Any) -> Any:
        """whole: the group's sums, or those of its high plane if `low` has the other's.

        x: the words that describe the group's activations.
        """
        if low is not None:
            whole = T.shift_left(whole, splat(T.int32(8), L)) + low
        if offset:
            whole = whole - splat(x(SUM) * T.int32(offset), L)
        x_scale = T.reinterpret(x(SCALE), dtype="float32")
        f = f + T.cast(whole, f"float32x{L}") * (scale * splat(x_scale, L))
        if fmt.has_minimum:
            f = f + minimum * splat(T.reinterpret(x(SCALED_SUM), dtype="float32"), L)
        return f

    @T.inline
    def tile(X, W, Y, block, streams, row, rows, is_first, planes):
        """Sum s * rows + r is that of row r in stream s. The planes have a buffer each, for TVM
        keeps those of 1 KiB in memory and smaller ones in registers."""
        f = T.alloc_buffer((streams * rows, V, L), "float32")
        acc = T.alloc_buffer((streams * rows, V, L), "int32")
        low = T.alloc_buffer((streams * rows, V, L), "int32")
        _clear(f, streams * rows, L)
        for g in T.serial(G):
            if is_first:
                for s in T.unroll(streams):
                    _prefetch(W, block + s * apart, g + ahead, stride // LINE)
            for i in T.unroll(streams * rows):
                for v in T.unroll(V):
                    acc[i, v, lane] = splat(T.int32(0), L)
                    if planes == 2:
                        low[i, v, lane] = splat(T.int32(0), L)
            for j in T.unroll(words):
                for s in T.unroll(streams):
                    for r in T.unroll(rows):
                        for v in T.unroll(V):
                            acc[s * rows + r, v, lane] = added(
                                acc[s * rows + r, v, lane],
                                *(W, (block + s * apart, g, j), v, X, row + r, 0),
                            )
                            if planes == 2:
                                low[s * rows + r, v, lane] = added(
                                    low[s * rows + r, v, lane],
                                    *(W, (block + s * apart, g, j), v, X, row + r, 1),
                                )
            for s in T.unroll(streams):
                for r in T.unroll(rows):
                    for v in T.unroll(V):
                        f[s * rows + r, v, lane] = group_sum(
                            f[s * rows + r, v, lane],
                            acc[s * rows + r, v, lane],
                            low[s * rows + r, v, lane] if planes == 2 else None,
                            scale_at(fmt, W, block + s * apart, g, v, L),
                            minimum_at(fmt, W, block + s * apart, g, v, L),
                            description(X, row + r, g, fmt.group, planes < isa.sums),
                        )
        for s in T.unroll(streams):
            _store(Y, f, s * rows, row, rows, block + s * apart, L, accumulate)

    @T.inline
    def tiles(X, W, Y, block, start, count, planes):
        for s in T.serial(S):
            for _ in T.serial(T.min(count // MB, 1)):
                tile(X, W, Y, block + s * apart, 1, start, MB, True, planes)
            for t in T.serial(T.max(count // MB, 1) - 1):
                tile(X, W, Y, block + s * apart, 1, start + (t + 1) * MB, MB, False, planes)
        for t in T.serial(count % MB):
            tile(X, W, Y, block, S, start + count - count % MB + t, 1, True, planes)

    return tiles


def _integer(n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> tvm.tirx.PrimFunc:
    """Activations are 16-bit integers with a scale a group; sums within a group are exact."""
    G, NB, planes, S = k // fmt.group, n // BLOCK, isa.sums, _streams(n, isa)
    tiles = _integer_tiles(n, k, fmt, isa, accumulate)

    @T.prim_func(private=True, s_tir=True)
    def integer_matmul(x: T.handle, W: T.Buffer((NB, G, fmt.stride), "int32"), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, G, quantized_width(fmt.group)), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            for block in T.parallel(NB // S):
                tiles(X, W, Y, block, 0, m, planes)

    return integer_matmul


def _coarse(n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> tvm.tirx.PrimFunc:
    """The first C[0] rows by the high bytes of their activations alone, the others exactly."""
    G, NB, planes, S = k // fmt.group, n // BLOCK, isa.sums, _streams(n, isa)
    tiles = _integer_tiles(n, k, fmt, isa, accumulate)

    @T.prim_func(private=True, s_tir=True)
    def coarse_matmul(
        x: T.handle,
        W: T.Buffer((NB, G, fmt.stride), "int32"),
        C: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, G, quantized_width(fmt.group)), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            for block in T.parallel(NB // S):
                tiles(X, W, Y, block, 0, C[0], 1)
                tiles(X, W, Y, block, C[0], m - C[0], planes)

    return coarse_matmul


def _dequantised(
    n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Weights become float32 exactly as the file's format says; plain float sums."""
    L, MB, G = isa.lanes, isa.row_tile, k // fmt.group
    V, NB, words, stride = BLOCK // L, n // BLOCK, fmt.words, fmt.stride
    quads, parts, f32, lane = fmt.group // 4, word_parts(fmt), f"float32x{L}", lanes_at(0, L)
    ahead = max(1, PREFETCH_BYTES // (4 * stride))

    def value(word: Any, scale: Any, minimum: Any, part: int, byte: int) -> Any:
        q = weight_values(fmt, word, part, byte, L)
        if fmt.has_minimum:
            return T.cast(q, f32) * scale + minimum
        return T.cast(q - splat(T.int32(fmt.offset), L), f32) * scale

    @T.prim_func(private=True, s_tir=True)
    def dequantised_matmul(
        x: T.handle,
        W: T.Buffer((NB, G, stride), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        Y = T.match_buffer(y, (m, n), "float32")

        @T.inline
        def tile(block, row, rows, is_first):
            f = T.alloc_buffer((rows, V, L), "float32")
            w = T.alloc_buffer((V, L), "float32")
            _clear(f, rows, L)
            for g in T.serial(G):
                if is_first:
                    _prefetch(W, block, g + ahead, stride // LINE)
                for j in T.serial(words):
                    for part in T.unroll(parts):
                        for byte in T.unroll(4):
                            for v in T.unroll(V):
                                w[v, lane] = value(
                                    W[block, g, lanes_at(j * BLOCK + v * L, L)],
                                    scale_at(fmt, W, block, g, v, L),
                                    minimum_at(fmt, W, block, g, v, L),
                                    part,
                                    byte,
                                )
                            for r in T.unroll(rows):
                                for v in T.unroll(V):
                                    f[r, v, lane] = f[r, v, lane] + w[v, lane] * splat(
                                        X[row + r, g * fmt.group + quads * byte + part * words + j],
                                        L,
                                    )
            _store(Y, f, 0, row, rows, block, L, accumulate)

        with T.sblock("root"):
            for block in T.parallel(NB):
                for _ in T.serial(T.min(m // MB, 1)):
                    tile(block, 0, MB, True)
                for t in T.serial(T.max(m // MB, 1) - 1):
                    tile(block, (t + 1) * MB, MB, False)
                for t in T.serial(m % MB):
                    tile(block, m - m % MB + t, 1, True)

    return dequantised_matmul


def _float_weights(
    n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Weights are stored as float16 or float32, [n/16, k, 16]."""
    L, MB = isa.lanes, isa.row_tile
    V, NB = BLOCK // L, n // BLOCK
    f32, lane = f"float32x{L}", lanes_at(0, L)

    @T.prim_func(private=True, s_tir=True)
    def float_matmul(x: T.handle, W: T.Buffer((NB, k, BLOCK), f"float{fmt.bits}"), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        Y = T.match_buffer(y, (m, n), "float32")

        @T.inline
        def tile(block, row, rows):
            f = T.alloc_buffer((rows, V, L), "float32")
            _clear(f, rows, L)
            for i in T.serial(k):
                for r in T.unroll(rows):
                    for v in T.unroll(V):
                        f[r, v, lane] = f[r, v, lane] + splat(X[row + r, i], L) * T.cast(
                            W[block, i, lanes_at(v * L, L)], f32
                        )
            _store(Y, f, 0, row, rows, block, L, accumulate)

        with T.sblock("root"):
            for block in T.parallel(NB):
                for t in T.serial(m // MB):
                    tile(block, t * MB, MB)
                for t in T.serial(m % MB):
                    tile(block, m - m % MB + t, 1)

    return float_matmul


@T.inline
def _prefetch(W, block, g, lines):
    """Asks for a group that is needed soon; past the end it is ignored."""
    for i in T.unroll(lines):
        T.evaluate(prefetch(W, block, g, i * LINE))


@T.inline
def _clear(f, rows, lanes):
    for r in T.unroll(rows):
        for v in T.unroll(BLOCK // lanes):
            f[r, v, lanes_at(0, lanes)] = fsplat(0.0, lanes)


@T.inline
def _store(Y, f, first, row, rows, block, lanes, accumulate):
    """A tile's sums from `first` on go to Y, or are added to what is there."""
    for r in T.unroll(rows):
        for v in T.unroll(BLOCK // lanes):
            if accumulate:
                Y[row + r, lanes_at(block * BLOCK + v * lanes, lanes)] = (
                    Y[row + r, lanes_at(block * BLOCK + v * lanes, lanes)]
                    + f[first + r, v, lanes_at(0, lanes)]
                )
            else:
                Y[row + r, lanes_at(block * BLOCK + v * lanes, lanes)] = f[
                    first + r, v, lanes_at(0, lanes)
                ]
