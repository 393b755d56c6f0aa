"""Causal attention of new tokens over paged keys and values, prefill and decode alike.

The keys of a sequence are cut into sections of fixed places. For a section a row of queries makes
a plain softmax of its own; sections are then folded together, the first one first (the online
softmax of Milakov and Gimelshein 2018; Dao et al. 2022). What a row computes so depends on nothing
but its own place: neither on the tokens beside it nor on who computes which section.

Work is cut into units. A tile of several neighbouring tokens, times the query heads that share a
key/value head, is one unit that walks its sections. A tile of one token is a unit a section, so
that a long sequence that decodes keeps all threads busy; what its sections gave is
folded together when all are done. `attention_section.py` has what is done with one section.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.attention_section import SECTION, Shape, folding, is_seen, section_parts
from mlc_llm.kernels.cpu.vectors import SCHEDULED

MANY = 64
"""Sections from which on a second thread is worth its wake-up to fold them together."""
SPREAD = 16
"""Units that follow each other are so many steps of the whole work apart: later tokens of a prompt
see more than earlier ones, and every thread gets a stretch of units."""


def query_tile(heads: int, kv_heads: int, isa: Isa) -> int:
    """Tokens a tile: as many as keep all score rows in registers."""
    rows = 12 if isa.lanes == 16 else 6
    return max(1, rows // (heads // kv_heads))


@cache
def attention(
    heads: int, kv_heads: int, head_dim: int, isa: Isa, kv_dtype: str, sink_query: bool = False
) -> tvm.tirx.PrimFunc:
    """Kernel arguments:

    rotated     float32 [m, heads * head_dim], scaled by log2(e) times the scale of scores
    pages       kv_dtype [pages, kv_heads, 2, PAGE * head_dim], holding the new tokens already
    position    int32 [m], place of each token in its page list
    tiles       int32 [t, 3]: first token row, number of tokens, start of the page list
    page_ids    int32 [n], the sequences' pages, one list after the other; any page stands for one
                that is not seen
    window      int32 [2]: a token sees the last window[0] tokens, itself included, and the first
                window[1] of its sequence
    out         float32 [m, heads * head_dim]

    sink_query: a row of `rotated` is twice as long. Its second half is the query for the sections
    that hold any of the first window[1] tokens.
    """
    D = head_dim
    shape = Shape(heads, kv_heads, head_dim, isa, kv_dtype, sink_query)
    attend = attended(shape)

    @T.prim_func(private=True, s_tir=True)
    def paged_attention(
        rotated: T.handle,
        pages: T.handle,
        position: T.handle,
        tiles: T.handle,
        page_ids: T.handle,
        window: T.handle,
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
            attend(Q, P, POS, TILE, IDS, W, O, m, num_tiles, n, 0)

    return paged_attention


def attended(shape: Shape) -> Any:
    """Statements of the kernel for its arguments: an inline function.

    first: the rows before that one are not computed.
    """
    heads, kv_heads, D, isa, *_ = shape
    L, share = isa.lanes, shape.share
    QT = query_tile(heads, kv_heads, isa)
    section = section_parts(shape)
    clear, fold, write = folding(L, D)

    def sections(position: Any) -> Any:
        return position // (PAGE * SECTION) + 1

    @T.inline
    def walk(Q, P, POS, TILE, IDS, W, O, n, t, h, rows):
        # Row r is query head h * share + r % share of token first + min(r // share, count - 1).
        token = T.alloc_buffer((QT,), "int32")
        s = T.alloc_buffer((rows, SECTION * PAGE), "float32")
        new_o = T.alloc_buffer((rows, D), "float32")
        new_best = T.alloc_buffer((rows,), "float32")
        new_total = T.alloc_buffer((rows,), "float32")
        o = T.alloc_buffer((rows, D), "float32")
        best = T.alloc_buffer((rows,), "float32")
        total = T.alloc_buffer((rows,), "float32")
        zero = T.alloc_buffer((1,), "int32")
        zero[0] = 0
        for i in T.unroll(QT):
            token[i] = TILE[t, 0] + T.min(i, TILE[t, 1] - 1)
        for r in T.serial(rows):
            clear(best, total, o, r)
        newest: T.let[T.int32] = POS[token[QT - 1]]
        for which in T.serial(sections(newest)):
            if is_seen(which * SECTION * PAGE, SECTION * PAGE, POS[token[0]], W):
                section(
                    *(P, Q, POS, IDS, W, s, new_o, new_best, new_total, zero),
                    *(token, TILE[t, 2], n, h, which, rows),
                )
                for r in T.serial(rows):
                    fold(best, total, o, r, new_best, new_total, new_o, r)
        for r in T.serial(rows):
            if r // share < TILE[t, 1]:
                write(O, o, total, r, token[r // share], h * share + r % share)

    @T.inline
    def room(TILE, n, num_tiles, t, begin, width):
        # Places of tile t for results of its sections. A sequence that decodes has enough of
        # them; the tiles of a prompt share a page list, and all but the last have one place.
        begin[0] = TILE[t, 2] // SECTION + t
        width[0] = n // SECTION + num_tiles - begin[0]
        if t + 1 < num_tiles:
            width[0] = TILE[t + 1, 2] // SECTION + t + 1 - begin[0]

    @T.inline
    def find(TILE, n, num_tiles, unit, tile, begin, width):
        # The last tile whose units begin at this one or before.
        above = T.alloc_buffer((1,), "int32")
        middle = T.alloc_buffer((1,), "int32")
        tile[0] = 0
        above[0] = num_tiles
        while above[0] - tile[0] > 1:
            middle[0] = (tile[0] + above[0]) // 2
            if (TILE[middle[0], 2] // SECTION + middle[0]) * kv_heads <= unit:
                tile[0] = middle[0]
            else:
                above[0] = middle[0]
        room(TILE, n, num_tiles, tile[0], begin, width)

    @T.inline
    def attend(Q, P, POS, TILE, IDS, W, O, m, num_tiles, n, first):
        # Sections of one-token tiles wait here for the others of their tile.
        part_o = T.alloc_buffer(((n // SECTION + num_tiles) * heads, D), "float32")
        part_best = T.alloc_buffer(((n // SECTION + num_tiles) * heads,), "float32")
        part_total = T.alloc_buffer(((n // SECTION + num_tiles) * heads,), "float32")

        @T.inline
        def one(t, h, which, place):
            token = T.alloc_buffer((1,), "int32")
            row = T.alloc_buffer((1,), "int32")
            s = T.alloc_buffer((share, SECTION * PAGE), "float32")
            token[0] = TILE[t, 0]
            row[0] = place * heads + h * share
            section(
                *(P, Q, POS, IDS, W, s, part_o, part_best, part_total, row),
                *(token, TILE[t, 2], n, h, which, share),
            )

        @T.inline
        def gather(u):
            # What the heads of a one-token tile that share keys and values found in sections.
            t = T.alloc_buffer((1,), "int32")
            h = T.alloc_buffer((1,), "int32")
            begin = T.alloc_buffer((1,), "int32")
            width = T.alloc_buffer((1,), "int32")
            t[0] = u // kv_heads
            h[0] = u % kv_heads
            room(TILE, n, num_tiles, t[0], begin, width)
            if T.And(
                T.And(TILE[t[0], 0] >= first, TILE[t[0], 1] == 1),
                width[0] >= sections(POS[TILE[t[0], 0]]),
            ):
                best = T.alloc_buffer((share,), "float32")
                total = T.alloc_buffer((share,), "float32")
                o = T.alloc_buffer((share, D), "float32")
                for r in T.unroll(share):
                    clear(best, total, o, r)
                for which in T.serial(sections(POS[TILE[t[0], 0]])):
                    if is_seen(which * SECTION * PAGE, SECTION * PAGE, POS[TILE[t[0], 0]], W):
                        for r in T.unroll(share):
                            fold(
                                *(best, total, o, r, part_best, part_total, part_o),
                                (begin[0] + which) * heads + h[0] * share + r,
                            )
                for r in T.unroll(share):
                    write(O, o, total, r, TILE[t[0], 0], h[0] * share + r)

        units = T.meta_var((n // SECTION + num_tiles) * kv_heads)
        stride = T.meta_var(_stride(units, m > num_tiles))
        for u in T.parallel(spread_units(units, stride)):
            # Numbers in buffers, not names: a name is spelt out again wherever it is used,
            # and compiling takes three times as long.
            unit = T.alloc_buffer((1,), "int32")
            tile = T.alloc_buffer((1,), "int32")
            begin = T.alloc_buffer((1,), "int32")
            width = T.alloc_buffer((1,), "int32")
            which = T.alloc_buffer((1,), "int32")
            head = T.alloc_buffer((1,), "int32")
            unit[0] = spread(u, units, stride)
            if unit[0] < units:
                find(TILE, n, num_tiles, unit[0], tile, begin, width)
                unit[0] = unit[0] - begin[0] * kv_heads
                which[0] = unit[0] % width[0]
                head[0] = unit[0] // width[0]
                if TILE[tile[0], 0] < first:
                    T.evaluate(0)
                elif TILE[tile[0], 1] > 1 or width[0] < sections(POS[TILE[tile[0], 0]]):
                    if which[0] == 0:
                        walk(Q, P, POS, TILE, IDS, W, O, n, tile[0], head[0], QT * share)
                elif T.And(
                    which[0] < sections(POS[TILE[tile[0], 0]]),
                    is_seen(which[0] * SECTION * PAGE, SECTION * PAGE, POS[TILE[tile[0], 0]], W),
                ):
                    one(tile[0], head[0], which[0], begin[0] + which[0])
        if (n // SECTION + num_tiles) * kv_heads >= MANY:
            for u in T.parallel(num_tiles * kv_heads):
                gather(u)
        else:
            for u in T.serial(num_tiles * kv_heads):
                gather(u)

    return attend


def _stride(units: Any, is_prompt: Any) -> Any:
    return T.if_then_else(is_prompt, T.max(units // SPREAD // 2, 1), 1)


def spread_units(units: Any, stride: Any) -> Any:
    """How many numbers `spread` takes: a few more than there are units."""
    return (units + stride - 1) // stride * stride


def spread(u: Any, units: Any, stride: Any) -> Any:
    """A different unit for each u; neighbours of u are a part in `stride` of all units apart."""
    columns = (units + stride - 1) // stride
    return u % stride * columns + u // stride
