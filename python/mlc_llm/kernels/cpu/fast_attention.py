"""Attention of coarse rows on tile registers; exact rows beside them as ever (`attention.py`).

A tile of neighbouring tokens, times the query heads that share a key/value head, is a unit. It
walks its sections: their keys and values become tiles of bfloat16, then meet 32 rows of queries at
a time.

Word i of a tile's row holds elements i and i + 16 of 32: of a head, or places in two pages.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_pipeline import L
from mlc_llm.kernels.cpu.attention import attended, spread, spread_units
from mlc_llm.kernels.cpu.attention_section import (
    SECTION,
    Shape,
    folding,
    is_seen,
    query_column,
    seen_score,
    softmax_parts,
)
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat

MOST_ROWS = 128
"""Of a unit."""
PAIR = 2 * ROWS
"""Rows, or elements of a head, that are multiplied together."""
PARTS = 8
"""Of all units: every thread gets its share of each, for later tokens see more."""
PAGES = SECTION // 2
"""Pairs of pages in a section."""


def has_coarse_attention(head_dim: int, isa: Isa) -> bool:
    """Whether coarse rows have an attention of their own."""
    return isa.fast and head_dim % PAIR == 0


def coarse_tile(heads: int, kv_heads: int) -> int:
    """Tokens a tile."""
    return max(1, MOST_ROWS // (heads // kv_heads))


@cache
def mixed_attention(
    heads: int, kv_heads: int, head_dim: int, isa: Isa, kv_dtype: str, sink_query: bool = False
) -> tvm.tirx.PrimFunc:
    """Arguments as those of `attention.attention`, but C int32 [1] comes before `out`.

    The first C[0] rows of `rotated` are coarse; their tiles, which come first, are of up to
    `coarse_tile` tokens.
    """
    D = head_dim
    shape = Shape(heads, kv_heads, head_dim, isa, kv_dtype, sink_query)
    exact, walk = attended(shape), _walk(shape)

    @T.prim_func(private=True, s_tir=True)
    def attention_of_coarse_and_exact(
        rotated: T.handle,
        pages: T.handle,
        position: T.handle,
        tiles: T.handle,
        page_ids: T.handle,
        window: T.handle,
        C: T.Buffer((1,), "int32"),
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        num_pages = T.int32()
        num_tiles = T.int32()
        n = T.int32()
        Q = T.match_buffer(rotated, (m, shape.queries), "float32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, PAGE * D), kv_dtype)
        POS = T.match_buffer(position, (m,), "int32")
        TILE = T.match_buffer(tiles, (num_tiles, 3), "int32")
        IDS = T.match_buffer(page_ids, (n,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        O = T.match_buffer(out, (m, heads * D), "float32")
        with T.sblock("root"):
            if C[0] > 0:
                units = T.alloc_buffer((1,), "int32")
                units[0] = 0
                for t in T.serial(num_tiles):
                    if TILE[t, 0] < C[0]:
                        units[0] = units[0] + kv_heads
                for u in T.parallel(spread_units(units[0], PARTS)):
                    unit = T.alloc_buffer((1,), "int32")
                    unit[0] = spread(u, units[0], PARTS)
                    if unit[0] < units[0]:
                        walk(
                            P, Q, POS, TILE, IDS, W, O,
                            unit[0] // kv_heads, unit[0] % kv_heads, n,
                        )  # fmt: skip
            if C[0] < m:
                exact(Q, P, POS, TILE, IDS, W, O, m, num_tiles, n, C[0])

    return attention_of_coarse_and_exact


def _walk(shape: Shape) -> Any:
    """Statements for tile t and key/value head h: an inline function."""
    D, share = shape.head_dim, shape.share
    E, DV = D // PAIR, D // L
    pairs = -(-coarse_tile(shape.heads, shape.kv_heads) * share // PAIR)
    clear, fold, write = folding(L, D)
    queries, keys, values = _fills(shape)
    scores, weighted = _products(shape)
    _, softmax = softmax_parts(shape)

    @T.inline
    def mask(s, place, W, r0, first, count):
        for r in T.serial(PAIR):
            for v in T.serial(count[0]):
                s[r, lanes_at(v * L, L)] = seen_score(
                    s[r, lanes_at(v * L, L)], (first[0] + v) * PAGE, place[r0 + r], W, L
                )

    @T.inline
    def walk(P, Q, POS, TILE, IDS, W, O, t, h, n):
        # Row r is query head h * share + r % share of token first + min(r // share, count - 1).
        config = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
        QT = T.alloc_buffer((2 * pairs, E, ROWS, L), "int32")
        KT = T.alloc_buffer((SECTION, E, ROWS, L), "int32")
        VT = T.alloc_buffer((DV, PAGES, ROWS, L), "int32")
        ST = T.alloc_buffer((PAIR, SECTION * PAGE), "float32")
        WT = T.alloc_buffer((2, PAGES, ROWS, L), "int32")
        new_o = T.alloc_buffer((PAIR, D), "float32")
        new_best = T.alloc_buffer((PAIR,), "float32")
        new_total = T.alloc_buffer((PAIR,), "float32")
        o = T.alloc_buffer((pairs * PAIR, D), "float32")
        best = T.alloc_buffer((pairs * PAIR,), "float32")
        total = T.alloc_buffer((pairs * PAIR,), "float32")
        place = T.alloc_buffer((pairs * PAIR,), "int32")
        row = T.alloc_buffer((pairs * PAIR,), "int32")
        first = T.alloc_buffer((1,), "int32")
        count = T.alloc_buffer((1,), "int32")
        oldest = T.alloc_buffer((1,), "int32")
        newest = T.alloc_buffer((1,), "int32")
        zero = T.alloc_buffer((1,), "int32")
        zero[0] = 0
        column = T.alloc_buffer((1,), "int32")
        column[0] = query_column(shape, 0, W)
        amx.configure(config, ROWS)
        for r in T.serial(pairs * PAIR):
            row[r] = TILE[t, 0] + T.min(r // share, TILE[t, 1] - 1)
            place[r] = POS[row[r]]
            clear(best, total, o, r)
            queries(Q, QT, row, column[0], h, r)
        oldest[0] = POS[TILE[t, 0]]
        newest[0] = POS[TILE[t, 0] + TILE[t, 1] - 1]
        for which in T.serial(newest[0] // (PAGE * SECTION) + 1):
            if is_seen(which * SECTION * PAGE, SECTION * PAGE, oldest[0], W):
                first[0] = which * SECTION
                count[0] = T.min(SECTION, newest[0] // PAGE + 1 - first[0])
                if shape.sink_query:  # sections with sinks come first: this happens once
                    if column[0] != query_column(shape, first[0] * PAGE, W):
                        column[0] = query_column(shape, first[0] * PAGE, W)
                        for r in T.serial(pairs * PAIR):
                            queries(Q, QT, row, column[0], h, r)
                for p in T.serial((count[0] + 1) // 2):
                    keys(P, IDS, KT, TILE[t, 2], h, first[0], p, newest[0])
                    values(P, IDS, VT, W, TILE[t, 2], h, first[0], p, oldest[0], newest[0])
                # A page behind the last one is masked as a whole.
                count[0] = (count[0] + 1) // 2 * 2
                for pair in T.serial(T.ceildiv(TILE[t, 1] * share, PAIR)):
                    scores(QT, KT, ST, pair, count)
                    if T.Or(
                        (first[0] + count[0]) * PAGE > oldest[0] + 1,
                        first[0] * PAGE <= newest[0] - W[0],
                    ):
                        mask(ST, place, W, pair * PAIR, first, count)
                    softmax(ST, new_best, new_total, zero, count, PAIR)
                    weighted(ST, WT, VT, new_o, count)
                    for r in T.serial(PAIR):
                        fold(best, total, o, pair * PAIR + r, new_best, new_total, new_o, r)
        for r in T.serial(TILE[t, 1] * share):
            write(O, o, total, r, row[r], h * share + r % share)
        T.evaluate(amx.release())

    return walk


def _fills(shape: Shape) -> Any:
    """Inline functions that make tiles: of one row of queries, of the keys, and of the values, of
    two pages of a section."""
    D, share = shape.head_dim, shape.share
    E, DV, f32 = D // PAIR, D // L, f"float32x{L}"
    lane = lanes_at(0, L)

    @T.inline
    def queries(Q, QT, row, column, h, r):
        for e in T.serial(E):
            QT[r // ROWS, e, r % ROWS, lane] = round_pair(
                Q[row[r], lanes_at(column + (h * share + r % share) * D + e * PAIR, L)],
                Q[row[r], lanes_at(column + (h * share + r % share) * D + e * PAIR + L, L)],
            )

    @T.inline
    def keys(P, IDS, KT, start, h, first, p, newest):
        page = T.alloc_buffer((1,), "int32")
        for i in T.serial(2):
            page[0] = IDS[start + T.min(first + 2 * p + i, newest // PAGE)]
            for e in T.serial(E):
                for d in T.unroll(ROWS):
                    KT[2 * p + i, e, d, lane] = round_pair(
                        T.cast(P[page[0], h, 0, lanes_at((e * PAIR + d) * PAGE, L)], f32),
                        T.cast(P[page[0], h, 0, lanes_at((e * PAIR + d + L) * PAGE, L)], f32),
                    )

    def half(at: Any, newest: Any, oldest: Any, W: Any, i: Any, bits: int) -> Any:
        """The bits of a word that place i of the page at `at` has: none where nobody sees it, for
        there may be anything."""
        known = T.And(at + i <= newest, is_seen(at, PAGE, oldest, W))
        return T.if_then_else(known, T.int32(bits), T.int32(0))

    @T.inline
    def values(P, IDS, VT, W, start, h, first, p, oldest, newest):
        page = T.alloc_buffer((2,), "int32")
        bits = T.alloc_buffer((1,), "int32")
        for i in T.unroll(2):
            page[i] = IDS[start + T.min(first + 2 * p + i, newest // PAGE)]
        for i in T.serial(PAGE):
            bits[0] = half((first + 2 * p) * PAGE, newest, oldest, W, i, 0xFFFF) | half(
                (first + 2 * p + 1) * PAGE, newest, oldest, W, i, -0x10000
            )
            for d in T.unroll(DV):
                VT[d, p, i, lane] = splat(bits[0], L) & round_pair(
                    T.cast(P[page[0], h, 1, lanes_at(i * D + d * L, L)], f32),
                    T.cast(P[page[1], h, 1, lanes_at(i * D + d * L, L)], f32),
                )

    return queries, keys, values


def _products(shape: Shape) -> Any:
    """Inline functions: scores of 32 rows, and values weighted with them."""
    D = shape.head_dim
    E, DV, lane = D // PAIR, D // L, lanes_at(0, L)

    @T.inline
    def clear():
        for i in T.unroll(4):
            T.evaluate(amx.clear(amx.SUMS + i))

    @T.inline
    def load(register, tiles, at, other):
        for i in T.unroll(2):
            T.evaluate(
                amx.load(
                    register + i,
                    T.address_of(tiles[at + i, other, 0, 0]),
                    amx.ROW_BYTES,
                )
            )

    @T.inline
    def multiply():
        for x in T.unroll(2):
            for w in T.unroll(2):
                T.evaluate(
                    amx.multiply_floats(amx.SUMS + 2 * x + w, amx.X_TILES + x, amx.W_TILES + w)
                )

    @T.inline
    def store(out, column, stride):
        for x in T.unroll(2):
            for w in T.unroll(2):
                T.evaluate(
                    amx.store(
                        amx.SUMS + 2 * x + w,
                        T.address_of(out[x * ROWS, column + w * L]),
                        4 * stride,
                    )
                )

    @T.inline
    def scores(QT, KT, ST, pair, count):
        for p in T.serial(count[0] // 2):
            clear()
            for e in T.unroll(E):
                load(amx.X_TILES, QT, 2 * pair, e)
                load(amx.W_TILES, KT, 2 * p, e)
                multiply()
            store(ST, p * PAIR, SECTION * PAGE)

    @T.inline
    def weighted(ST, WT, VT, new_o, count):
        for p in T.serial(count[0] // 2):
            for r in T.serial(PAIR):
                WT[r // ROWS, p, r % ROWS, lane] = round_pair(
                    ST[r, lanes_at(p * PAIR, L)], ST[r, lanes_at(p * PAIR + L, L)]
                )
        for d in T.unroll(DV // 2):
            clear()
            for p in T.serial(count[0] // 2):
                load(amx.X_TILES, WT, 0, p)
                load(amx.W_TILES, VT, 2 * d, p)
                multiply()
            store(new_o, d * PAIR, D)

    return scores, weighted
