"""Products with fixed-point weights: within a section of columns every sum is exact.

A weight is q * s (less an offset, or plus a minimum m), whole numbers in units of its row; an
activation is a whole number of 16 bits in units of its section (`sections.py`). So what a section
adds up to does not depend on the order, and few rows (here, on vectors) and many rows
(`tiles.py`) get the very same bits, each in the way that suits them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.dot import dot
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.scales import fixed_at, units_at
from mlc_llm.kernels.cpu.sections import (
    QUADS,
    SECTION,
    scales_start,
    sections,
    sections_width,
    sums_start,
)
from mlc_llm.kernels.cpu.tile_pipeline import put
from mlc_llm.kernels.cpu.tiles import HALF, exact_rows, section_sum
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat

L, V = 16, BLOCK // 16
"""Lanes of integers, and their vectors in a block."""
ROW_TILE = 4
"""Rows whose sums stay in registers together."""
LARGE = 2**21
"""Weights from which on a matrix hides what tiles cost at its start."""
PREFETCH_BYTES = 10240
"""How far ahead weights are asked for (see `matmul.py`)."""


def least_tile_rows(n: int, k: int) -> int:
    """Rows from which on tiles are faster, though some of the first one are empty."""
    return 8 if n * k >= LARGE else 10


def fixed_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it; X is int32 [m, sections_width(k)]."""
    G, NB, width = k // fmt.group, n // BLOCK, sections_width(k)
    units, few = few_rows(n, k, fmt, isa, accumulate=accumulate)
    many = exact_rows(n, k, fmt, accumulate)

    @T.prim_func(private=True, s_tir=True)
    def fixed_point_matmul(x: T.handle, W: T.Buffer((NB, G + 1, fmt.stride), "int32"), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            if m < least_tile_rows(n, k):
                for unit in T.parallel(units):
                    few(X, W, Y, unit, m)
            else:
                many(X, W, Y, m)

    return fixed_point_matmul


def few_rows(n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool) -> tuple[int, Any]:
    """A number of units, and the inline function of (X, W, Y, unit, m) that computes one of them:
    for all m rows a block of each stream. A single row goes through the streams side by side, as
    in `matmul.py`.
    """
    streams = 1 if n // BLOCK % 2 else 2
    apart = n // BLOCK // streams
    group_sum = _group_sum(k, fmt)
    multiply = _group_products(k, fmt, isa)
    G, S = k // fmt.group, sections(k)
    half, ahead = lanes_at(0, HALF), max(1, PREFETCH_BYTES // streams // (4 * fmt.stride))
    lines = 4 * fmt.stride // LINE_BYTES

    @T.inline
    def section(X, W, d0, d1, block, tiles, row, rows, s):
        acc = T.alloc_buffer((tiles * rows, V, L), "int32")
        low = T.alloc_buffer((tiles * rows, V, L), "int32")
        for g in T.serial(T.min(SECTION, G - s * SECTION)):
            for b in T.unroll(tiles):
                for i in T.unroll(lines):
                    T.evaluate(
                        prefetch(W, block + b * apart, s * SECTION + g + ahead, i * LINE_BYTES // 4)
                    )
                for r in T.unroll(rows):
                    multiply(
                        acc, low, b * rows + r, X, W, block + b * apart, row + r, s * SECTION + g
                    )
            for b in T.unroll(tiles):
                for r in T.unroll(rows):
                    for v in T.unroll(V):
                        d0[b * rows + r, v, half] = group_sum(
                            *(d0[b * rows + r, v, half], acc, low, b * rows + r, v, 0),
                            *(X, W, (block + b * apart, s * SECTION + g), row + r),
                        )
                        d1[b * rows + r, v, half] = group_sum(
                            *(d1[b * rows + r, v, half], acc, low, b * rows + r, v, 1),
                            *(X, W, (block + b * apart, s * SECTION + g), row + r),
                        )

    @T.inline
    def add_section(X, W, f, d, h, block, tiles, row, rows, s):
        for b in T.unroll(tiles):
            for r in T.unroll(rows):
                for v in T.unroll(V):
                    f[b * rows + r, v, half] = section_sum(
                        f[b * rows + r, v, half],
                        d[b * rows + r, v, half],
                        units_at(W, block + b * apart, v * L + h * HALF, HALF),
                        X[row + r, scales_start(k) + s],
                    )

    @T.inline
    def store(Y, f, h, block, tiles, row, rows):
        for b in T.unroll(tiles):
            for r in T.unroll(rows):
                for v in T.unroll(V):
                    put(
                        *(Y, row + r, (block + b * apart) * BLOCK + v * L + h * HALF),
                        *(f[b * rows + r, v, half], HALF, accumulate),
                    )

    @T.inline
    def tile(X, W, Y, block, tiles, row, rows):
        """Buffers stay below 1 KiB, or TVM would keep them in memory."""
        f0 = T.alloc_buffer((tiles * rows, V, HALF), "float32")
        f1 = T.alloc_buffer((tiles * rows, V, HALF), "float32")
        d0 = T.alloc_buffer((tiles * rows, V, HALF), "float64")
        d1 = T.alloc_buffer((tiles * rows, V, HALF), "float64")
        for i in T.unroll(tiles * rows):
            for v in T.unroll(V):
                f0[i, v, half] = fsplat(0.0, HALF)
                f1[i, v, half] = fsplat(0.0, HALF)
        for s in T.serial(S):
            for i in T.unroll(tiles * rows):
                for v in T.unroll(V):
                    d0[i, v, half] = splat(T.float64(0), HALF)
                    d1[i, v, half] = splat(T.float64(0), HALF)
            section(X, W, d0, d1, block, tiles, row, rows, s)
            add_section(X, W, f0, d0, 0, block, tiles, row, rows, s)
            add_section(X, W, f1, d1, 1, block, tiles, row, rows, s)
        store(Y, f0, 0, block, tiles, row, rows)
        store(Y, f1, 1, block, tiles, row, rows)

    @T.inline
    def few(X, W, Y, block, m):
        for b in T.serial(streams):
            for t in T.serial(m // ROW_TILE):
                tile(X, W, Y, block + b * apart, 1, t * ROW_TILE, ROW_TILE)
        for t in T.serial(m % ROW_TILE):
            tile(X, W, Y, block, streams, m - m % ROW_TILE + t, 1)

    return apart, few


def _group_products(k: int, fmt: WeightFormat, isa: Isa) -> Any:
    """Inline function: a group's integer sums of one row, by its high and low bytes."""
    lane = lanes_at(0, L)

    def step(acc: Any, word: Any, X: Any, row: Any, g: Any, j: Any, p: int) -> Any:
        def x(i: Any) -> Any:
            return X[row, p * (k // 4) + g * QUADS + i - p * QUADS]

        return dot(isa, fmt, acc, word, x, j, p)

    @T.inline
    def products(acc, low, i, X, W, block, row, g):
        for v in T.unroll(V):
            acc[i, v, lane] = splat(T.int32(0), L)
            low[i, v, lane] = splat(T.int32(0), L)
        for j in T.unroll(fmt.words):
            for v in T.unroll(V):
                acc[i, v, lane] = step(
                    acc[i, v, lane], W[block, g, lanes_at(j * BLOCK + v * L, L)], X, row, g, j, 0
                )
                low[i, v, lane] = step(
                    low[i, v, lane], W[block, g, lanes_at(j * BLOCK + v * L, L)], X, row, g, j, 1
                )

    return products


def _group_sum(k: int, fmt: WeightFormat) -> Any:
    """Function of d, (acc, low, i, v, half) and (X, W, (block, group), row): d and half a vector
    of the group's sums."""
    lane = lanes_at(0, L)

    def doubles(integers: Any, half: int) -> Any:
        lanes = list(range(half * HALF, half * HALF + HALF))
        return T.cast(T.Shuffle([integers], lanes), f"float64x{HALF}")

    def group_sum(d: Any, *given: Any) -> Any:
        acc, low, i, v, half, X, W, at, row = given
        whole = T.shift_left(acc[i, v, lane], splat(T.int32(8), L)) + low[i, v, lane]
        total = X[row, sums_start(k) + at[1]]
        if fmt.offset:
            whole = whole - splat(total * T.int32(fmt.offset), L)
        d = d + doubles(whole, half) * doubles(fixed_at(fmt, W, at, 0, v, L), half)
        if fmt.has_minimum:
            minima = doubles(fixed_at(fmt, W, at, 1, v, L), half)
            d = d + minima * splat(T.cast(total, "float64"), HALF)
        return d

    return group_sum
