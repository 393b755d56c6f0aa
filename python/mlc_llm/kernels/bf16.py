"""Products of coarse rows with fixed-point weights: both as bfloat16, on tile registers (`amx.py`).

A weight's whole number is rounded to bfloat16 and its row's unit is applied in the end. The sums
are float32, over all columns in their order, so that a row's bits depend on nothing else.

Coarse rows of activations lie as tiles in front of the exact rows: of each panel of columns the
units of 16 rows, of each unit a tile a group. Word i of a tile's row holds columns i and i + 16 of
the group, which is how nibbles come out of a word of weights two at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels import amx
from mlc_llm.kernels.activation import SERIAL_ROWS, input_width, inverse_rms, load, weight_shape
from mlc_llm.kernels.fixed import few_rows, least_tile_rows
from mlc_llm.kernels.formats import BLOCK, WeightFormat
from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.scales import fixed_at, units_at
from mlc_llm.kernels.sections import GROUP, quantized_section, sections, sections_width
from mlc_llm.kernels.tiles import tiled_rows
from mlc_llm.kernels.vectors import SCHEDULED, lanes_at, splat

ROWS = L = amx.ROWS
V = BLOCK // L
ROOM = ROWS - 1
"""Rows that may stay empty between coarse and exact rows."""
TILE = ROWS * L
"""32-bit words of a tile."""
PANEL = 16
"""Groups whose weights lie in the first cache, and meet all rows of a chunk before the next."""
PAIRS = 16
"""Two units each: rows of a chunk. A panel of their activations stays in the second cache."""
MOST_BLOCKS = 8
"""Blocks that a panel of activations meets before the next panel."""


@cache
def prepare_mixed(kind: str, k: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kinds and arguments as those of `activation.quantize`, but C int32 [1] comes before Y.

    Y is int32 [m + ROOM, sections_width(k)]: the first C[0] rows of X as tiles in front,
    the others as `sections.py` says behind them.
    """
    width, words = input_width(kind, k), sections_width(k)
    exact, coarse = _section_row(kind, k, isa, eps), _tile_row(kind, k, eps)

    @T.prim_func(private=True, s_tir=True)
    def prepare_coarse_and_exact(
        x: T.handle, weight: T.handle, C: T.Buffer((1,), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        places = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        Y = T.match_buffer(y, (places, words), "int32")
        with T.sblock("root"):
            Z = T.decl_buffer((places * words,), "int32", data=Y.data)
            E = T.decl_buffer(
                (m, words), "int32", data=Y.data, elem_offset=(_padded(C[0]) - C[0]) * words
            )
            if m <= SERIAL_ROWS and C[0] == 0:
                for row in T.serial(m):
                    exact(X, N, E, row)
            else:
                for row in T.parallel(m):
                    if row < C[0]:
                        coarse(X, N, Z, T.ceildiv(C[0], ROWS), row)
                    else:
                        exact(X, N, E, row)

    return prepare_coarse_and_exact


def mixed_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it for coarse rows; X comes from `prepare_mixed`."""
    G, NB, words = k // fmt.group, n // BLOCK, sections_width(k)
    coarse = coarse_tiles(n, k, fmt, accumulate)
    tasks, few = few_rows(n, k, fmt, isa, accumulate=accumulate)
    many = tiled_rows(n, k, fmt, accumulate)

    @T.prim_func(private=True, s_tir=True)
    def coarse_and_exact_matmul(
        x: T.handle,
        W: T.Buffer((NB, G + 1, fmt.stride), "int32"),
        C: T.Buffer((1,), "int32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        places = T.int32()
        X = T.match_buffer(x, (places, words), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            Z = T.decl_buffer((places * words,), "int32", data=X.data)
            E = T.decl_buffer(
                (m - C[0], words), "int32", data=X.data, elem_offset=_padded(C[0]) * words
            )
            R = T.decl_buffer((m - C[0], n), "float32", data=Y.data, elem_offset=C[0] * n)
            if C[0] > 0:
                coarse(Z, W, Y, C[0])
            if m - C[0] >= least_tile_rows(n, k):
                many(E, W, R, m - C[0])
            elif C[0] < m:
                for task in T.parallel(tasks):
                    few(E, W, R, task, m - C[0])

    return coarse_and_exact_matmul


def _padded(count: Any) -> Any:
    """Rows that so many coarse rows take up."""
    return T.ceildiv(count, ROWS) * ROWS


def _tile_at(groups: int, units: Any, unit: Any, g: Any) -> Any:
    """The word at which the tile of a unit and group begins; units: of all coarse rows."""
    panel = g // PANEL
    width = T.min(PANEL, groups - panel * PANEL)
    return (units * panel * PANEL + unit * width + g % PANEL) * TILE


def _round_pair(low: Any, high: Any) -> Any:
    """Two vectors of floats as bfloat16 in the low and high halves of words; ties go outwards."""
    half, mask = splat(T.int32(0x8000), L), splat(T.int32(0xFFFF), L)
    low, high = (T.reinterpret(part, dtype=f"int32x{L}") + half for part in (low, high))
    low = T.shift_right(low, splat(T.int32(16), L))
    return (low & mask) | (high & splat(T.int32(-0x10000), L))


def _blocks_together(blocks: int) -> int:
    """Blocks of a task: as many as can be, and an even number of tasks if that can be."""
    fitting = [b for b in range(1, MOST_BLOCKS + 1) if blocks % b == 0]
    even = [b for b in fitting if blocks // b % 2 == 0]
    return max(even or fitting)


def coarse_tiles(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Any:
    """Statements for all `count` coarse rows: an inline function of (Z, W, Y, count)."""
    G, task = k // fmt.group, _blocks_together(n // BLOCK)
    width = min(G, PANEL)
    panels = -(-G // PANEL)
    fill = _weight_tiles(fmt)

    @T.inline
    def finish(W, Y, F, b, block, u, first, rows):
        """Puts sums in units of their weights' rows into Y, or adds them."""
        for r in T.serial(rows):
            for v in T.unroll(V):
                if accumulate:
                    Y[first + r, lanes_at(block * BLOCK + v * L, L)] = Y[
                        first + r, lanes_at(block * BLOCK + v * L, L)
                    ] + F[b, u, v, r, lanes_at(0, L)] * units_at(W, block, v * L, L)
                else:
                    Y[first + r, lanes_at(block * BLOCK + v * L, L)] = F[
                        b, u, v, r, lanes_at(0, L)
                    ] * units_at(W, block, v * L, L)

    @T.inline
    def load_w(B, v, t):
        T.evaluate(amx.load(amx.W_TILES + v, T.address_of(B[v, t, 0, 0]), amx.ROW_BYTES))

    @T.inline
    def load_x(Z, i, units, unit, p, t):
        T.evaluate(
            amx.load(
                amx.X_TILES + i,
                T.address_of(Z[_tile_at(G, units, T.min(unit + i, units - 1), p * PANEL + t)]),
                amx.ROW_BYTES,
            )
        )

    @T.inline
    def products(Z, B, F, b, u, p, units, unit):
        """Adds a panel to the sums of two units and two vectors of a block."""
        if p == 0:
            for i in T.unroll(2 * V):
                T.evaluate(amx.clear(amx.SUMS + i))
        else:
            for v in T.unroll(V):
                for i in T.unroll(2):
                    T.evaluate(
                        amx.load(
                            amx.SUMS + 2 * v + i,
                            T.address_of(F[b, u, v, i * ROWS, 0]),
                            amx.ROW_BYTES,
                        )
                    )
        load_w(B, 0, 0)
        load_x(Z, 0, units, unit, p, 0)
        for t in T.serial(T.min(PANEL, G - p * PANEL)):
            # What the next products need is loaded while others are in work.
            load_x(Z, 1, units, unit, p, t)
            T.evaluate(amx.multiply_floats(amx.SUMS, amx.X_TILES, amx.W_TILES))
            load_w(B, 1, t)
            T.evaluate(amx.multiply_floats(amx.SUMS + 1, amx.X_TILES + 1, amx.W_TILES))
            load_w(B, 0, T.min(t + 1, T.min(PANEL, G - p * PANEL) - 1))
            T.evaluate(amx.multiply_floats(amx.SUMS + 2, amx.X_TILES, amx.W_TILES + 1))
            load_x(Z, 0, units, unit, p, T.min(t + 1, T.min(PANEL, G - p * PANEL) - 1))
            T.evaluate(amx.multiply_floats(amx.SUMS + 3, amx.X_TILES + 1, amx.W_TILES + 1))
        for v in T.unroll(V):
            for i in T.unroll(2):
                T.evaluate(
                    amx.store(
                        amx.SUMS + 2 * v + i, T.address_of(F[b, u, v, i * ROWS, 0]), amx.ROW_BYTES
                    )
                )

    @T.inline
    def some_blocks(Z, W, Y, block, first, rows, units):
        shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        B = T.alloc_buffer((V, width, ROWS, L), "int32")
        F = T.alloc_buffer((task, PAIRS, V, 2 * ROWS, L), "float32")
        amx.configure(shape, ROWS)
        for p in T.serial(panels):
            for b in T.serial(task):
                fill(W, B, block + b, p * PANEL, T.min(PANEL, G - p * PANEL))
                for u in T.serial(T.ceildiv(rows, 2 * ROWS)):
                    products(Z, B, F, b, u, p, units, first // ROWS + 2 * u)
                    if p == panels - 1:
                        finish(
                            W, Y, F, b, block + b, u, first + u * 2 * ROWS,
                            T.min(2 * ROWS, rows - u * 2 * ROWS),
                        )  # fmt: skip
        T.evaluate(amx.release())

    @T.inline
    def rows(Z, W, Y, count):
        for chunk in T.serial(T.ceildiv(count, PAIRS * 2 * ROWS)):
            for s in T.parallel(n // BLOCK // task):
                some_blocks(
                    Z, W, Y, s * task, chunk * PAIRS * 2 * ROWS,
                    T.min(PAIRS * 2 * ROWS, count - chunk * PAIRS * 2 * ROWS),
                    T.ceildiv(count, ROWS),
                )  # fmt: skip

    return rows


def _weight_tiles(fmt: WeightFormat) -> Any:
    """Inline function that turns groups of a block into tiles; row 4 * t + j holds what bits 4 * t
    and 16 + 4 * t of word j begin."""
    f32 = f"float32x{L}"

    def floats(integers: Any) -> Any:
        return T.cast(T.cast(integers, f"int32x{L}"), f32)

    def pair(word: Any, shift: Any, scale: Any, low: Any) -> Any:
        def value(bits: Any) -> Any:
            q = T.shift_right(word, splat(bits, L)) & splat(T.int32(15), L)
            return T.cast(q, f32) * scale + low

        return _round_pair(value(shift), value(shift + 16))

    @T.inline
    def fill(W, B, block, first, groups):
        scale = T.alloc_buffer((V, L), "float32")
        low = T.alloc_buffer((V, L), "float32")
        for g in T.serial(groups):
            for v in T.unroll(V):
                scale[v, lanes_at(0, L)] = floats(fixed_at(fmt, W, (block, first + g), 0, v, L))
                if fmt.has_minimum:
                    low[v, lanes_at(0, L)] = floats(fixed_at(fmt, W, (block, first + g), 1, v, L))
                else:
                    low[v, lanes_at(0, L)] = scale[v, lanes_at(0, L)] * splat(
                        T.float32(-fmt.offset), L
                    )
                for j in T.unroll(fmt.words):
                    for t in T.unroll(4):
                        B[v, g, 4 * t + j, lanes_at(0, L)] = pair(
                            W[block, first + g, lanes_at(j * BLOCK + v * L, L)],
                            4 * t,
                            scale[v, lanes_at(0, L)],
                            low[v, lanes_at(0, L)],
                        )

    return fill


def _section_row(kind: str, k: int, isa: Isa, eps: float) -> Any:
    """Statements for one exact row: an inline function of (X, N, Y, row)."""
    section = quantized_section(kind, k, isa)

    @T.inline
    def section_row(X, N, Y, row):
        inv = T.alloc_buffer((1,), "float32")
        if kind == "norm":
            inverse_rms(X, row, k, eps, inv)
        for s in T.serial(sections(k)):
            section(X, N, Y, row, s, inv)

    return section_row


def _tile_row(kind: str, k: int, eps: float) -> Any:
    """Statements for one coarse row: an inline function of (X, N, Z, units, row)."""

    @T.inline
    def tile_row(X, N, Z, units, row):
        inv = T.alloc_buffer((1,), "float32")
        if kind == "norm":
            inverse_rms(X, row, k, eps, inv)
        for g in T.serial(k // GROUP):
            Z[lanes_at(_tile_at(k // GROUP, units, row // ROWS, g) + row % ROWS * L, L)] = (
                _round_pair(
                    load(kind, X, N, row, g * GROUP, k, inv, L),
                    load(kind, X, N, row, g * GROUP + L, k, inv, L),
                )
            )

    return tile_row
