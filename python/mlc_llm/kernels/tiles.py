"""Products of many rows with fixed-point weights, on tile registers (`amx.py`).

Weights become two bytes, as activations are: four products of tiles, whose sums of bytes count
65536, 256 (two of them) and 1. For 16 rows of weights and a section of columns the tiles of
weights are made once and lie in the first cache; then they meet all activations of a chunk, which
lie in the second.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.kernels import amx
from mlc_llm.kernels.formats import BLOCK, WeightFormat
from mlc_llm.kernels.scales import fixed_at, units_at
from mlc_llm.kernels.sections import QUADS, SECTION, scales_start, sections, sections_width
from mlc_llm.kernels.vectors import fsplat, lanes_at, splat

ROWS = L = amx.ROWS
V, HALF, STEPS = BLOCK // L, 8, SECTION // 2
"""Vectors of a block, lanes of 64-bit sums, and products of tiles in a section: of 64 columns."""
CHUNK_BYTES = 5 * 2**18
"""Activations that stay in the second cache."""
ROW, KNOWN = range(2)
"""What a thread is at: a unit's first row, and how many of its rows are already there."""


def section_sum(f: Any, exact: Any, units: Any, scale: Any) -> Any:
    """The sums f plus a section's; exact: float64, a whole number; scale: bits of float32."""
    x_scale = splat(T.reinterpret(scale, dtype="float32"), HALF)
    return f + T.cast(exact, f"float32x{HALF}") * (units * x_scale)


@T.inline
def put(Y, row, column, sums, accumulate):
    """Writes `HALF` results or adds them to what is there."""
    if accumulate:
        Y[row, lanes_at(column, HALF)] = Y[row, lanes_at(column, HALF)] + sums
    else:
        Y[row, lanes_at(column, HALF)] = sums


def tiled_rows(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Any:
    """Statements for all m rows: an inline function of (X, W, Y, m)."""
    G, NB, S, units = k // fmt.group, n // BLOCK, sections(k), _chunk_units(k)
    fill, products = _weight_tiles(fmt), _products(k)

    def exact(C: Any, r: Any, h: Any) -> Any:
        planes = [T.cast(C[p, r, lanes_at(h * HALF, HALF)], f"float64x{HALF}") for p in range(3)]
        high, middle = (splat(T.float64(factor), HALF) for factor in (65536, 256))
        return planes[0] * high + (planes[1] * middle + planes[2])

    @T.inline
    def finish(X, W, Y, F, C, block, s, v, u, at, rows):
        """Adds the section to each row's sums, which lie in F until the last one."""
        for r in T.serial(rows):
            for h in T.unroll(2):
                F[u, v, r, lanes_at(h * HALF, HALF)] = section_sum(
                    T.if_then_else(s == 0, fsplat(0.0, HALF), F[u, v, r, lanes_at(h * HALF, HALF)]),
                    exact(C, r, h),
                    units_at(W, block, v * L + h * HALF, HALF),
                    X[at[ROW] + r, scales_start(k) + s],
                )
                if s == S - 1 and r >= at[KNOWN]:
                    put(
                        Y, at[ROW] + r, block * BLOCK + v * L + h * HALF,
                        F[u, v, r, lanes_at(h * HALF, HALF)], accumulate,
                    )  # fmt: skip

    @T.inline
    def chunk_rows(X, W, Y, block, m, first, count):
        at = T.alloc_buffer((2,), "int32")
        shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        B = T.alloc_buffer((STEPS, 2, ROWS, L), "int32")
        C = T.alloc_buffer((3, ROWS, L), "int32")
        F = T.alloc_buffer((units, V, ROWS, L), "float32")
        amx.configure(shape, T.min(m, ROWS))
        for s in T.serial(S):
            for v in T.serial(V):
                fill(W, B, block, v, s * SECTION, T.min(SECTION, G - s * SECTION))
                for u in T.serial(count):
                    at[ROW] = T.max(T.min((first + u) * ROWS, m - ROWS), 0)
                    at[KNOWN] = (first + u) * ROWS - at[ROW]
                    products(X, B, C, at, s, T.ceildiv(T.min(SECTION, G - s * SECTION), 2))
                    finish(X, W, Y, F, C, block, s, v, u, at, T.min(m, ROWS))
        T.evaluate(amx.release())

    @T.inline
    def rows(X, W, Y, m):
        """The last unit may begin within the one before: what is known then is not stored again."""
        for chunk in T.serial(T.ceildiv(T.ceildiv(m, ROWS), units)):
            for block in T.parallel(NB):
                chunk_rows(
                    X, W, Y, block, m, chunk * units,
                    T.min(units, T.ceildiv(m, ROWS) - chunk * units),
                )  # fmt: skip

    return rows


def _chunk_units(k: int) -> int:
    """Units of rows that `CHUNK_BYTES` hold."""
    return max(1, CHUNK_BYTES // (4 * sections_width(k) * ROWS))


def _products(k: int) -> Any:
    """Inline function that multiplies a unit's section and stores the three sums in C."""
    stride = 4 * sections_width(k)

    @T.inline
    def products(X, B, C, at, s, steps):
        for i in T.unroll(3):
            T.evaluate(amx.clear(amx.SUMS + i))
        for t in T.serial(steps):
            for p in T.unroll(2):
                T.evaluate(
                    amx.load(
                        amx.X_TILES + p,
                        T.address_of(X[at[ROW], p * (k // 4) + (s * STEPS + t) * 2 * QUADS]),
                        stride,
                    )
                )
                T.evaluate(amx.load(amx.W_TILES + p, T.address_of(B[t, p, 0, 0]), amx.ROW_BYTES))
            for p in T.unroll(2):
                for q in T.unroll(2):
                    T.evaluate(amx.multiply(amx.SUMS + p + q, amx.X_TILES + p, amx.W_TILES + q))
        for i in T.unroll(3):
            T.evaluate(amx.store(amx.SUMS + i, T.address_of(C[i, 0, 0]), amx.ROW_BYTES))

    return products


def _weight_tiles(fmt: WeightFormat) -> Any:
    """Inline function that turns groups of 16 rows of a block into tiles of high and low bytes.

    Row `part` * words + j of a group holds its word j as `dot.py` describes it, a byte a value.
    """
    words = fmt.words

    def twice(integers: Any) -> Any:
        """16 lanes of 16 bits, each of them two times side by side."""
        wide = T.cast(T.reinterpret(integers, dtype=f"uint16x{L}"), f"int32x{L}")
        return T.reinterpret(wide | T.shift_left(wide, splat(T.int32(16), L)), dtype="int16x32")

    def rounding(W: Any, at: Any, v: Any) -> Any:
        """What is added to q * s: minimum or offset, and half a step of the high byte."""
        half = splat(T.int16(128), 2 * L)
        if fmt.has_minimum:
            return half + twice(fixed_at(fmt, W, at, 1, v, L))
        return half - splat(T.int16(fmt.offset), 2 * L) * twice(fixed_at(fmt, W, at, 0, v, L))

    def rounded(W: Any, at: Any, v: Any, j: Any, part: Any, odd: int) -> Any:
        """Half a step more than the weights of bytes 0 and 2, or 1 and 3, of word j."""
        word = W[at[0], at[1], lanes_at(j * BLOCK + v * L, L)]
        q = T.shift_right(word, splat(4 * part + 8 * odd, L)) & splat(T.int32(0x000F000F), L)
        scaled = T.reinterpret(q, dtype="int16x32") * twice(fixed_at(fmt, W, at, 0, v, L))
        return T.reinterpret(scaled + rounding(W, at, v), dtype=f"int32x{L}")

    def plane(W: Any, at: Any, v: Any, j: Any, part: Any, p: int) -> Any:
        even, odd = (rounded(W, at, v, j, part, i) for i in range(2))
        low, high = splat(T.int32(0x00FF00FF), L), splat(T.int32(-0x00FF0100), L)
        if p == 0:
            return (T.shift_right(even, splat(T.int32(8), L)) & low) | (odd & high)
        octets = (even & low) | (T.shift_left(odd, splat(T.int32(8), L)) & high)
        return octets ^ splat(T.int32(-0x7F7F7F80), L)

    @T.inline
    def fill(W, B, block, v, first, groups):
        for g in T.serial(groups):
            for j in T.unroll(words):
                for part in T.unroll(2):
                    B[g // 2, 0, g % 2 * QUADS + part * words + j, lanes_at(0, L)] = plane(
                        W, (block, first + g), v, j, part, 0
                    )
                    B[g // 2, 1, g % 2 * QUADS + part * words + j, lanes_at(0, L)] = plane(
                        W, (block, first + g), v, j, part, 1
                    )
        if groups % 2 == 1:
            for i in T.unroll(2):
                for j in T.unroll(QUADS):
                    B[groups // 2, i, QUADS + j, lanes_at(0, L)] = splat(T.int32(0), L)

    return fill
