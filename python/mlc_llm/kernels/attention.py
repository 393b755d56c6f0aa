"""Causal attention of new tokens over paged keys and values, prefill and decode alike.

The keys of a sequence are cut into sections of fixed places. For a section a row of queries makes
a plain softmax of its own; sections are then folded together, the first one first (the online
softmax of Milakov and Gimelshein 2018; Dao et al. 2022). What a row computes so depends on nothing
but its own place: neither on the tokens beside it nor on who computes which section.

Work is cut into units. A tile of several neighbouring tokens, times the query heads that share a
key/value head, is one unit that walks its sections. A tile of one token is a unit a section, so
that a long sequence that decodes keeps all threads busy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import PAGE
from mlc_llm.kernels.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.vectors import SCHEDULED, exp2, fsplat, lanes_at, reduce_max, reduce_sum, splat

SECTION = 8
"""Pages a section."""
MASKED = -1.0e30
AHEAD = 4
"""Pages asked for ahead of their use: by then the weights of a step have driven them out of cache,
and a sequence's pages lie anywhere."""
SPREAD = 16
"""Units that follow each other are so many steps of the whole work apart: later tokens of a prompt
see more than earlier ones, and every thread gets a stretch of units."""


def query_tile(heads: int, kv_heads: int, isa: Isa) -> int:
    """Tokens a tile: as many as keep all score rows in registers."""
    rows = 12 if isa.lanes == 16 else 6
    return max(1, rows // (heads // kv_heads))


def _at_once(rows: int, most: int, isa: Isa) -> int:
    """Vectors of each row that are summed at once: a power of two, at most `most`.

    Few rows need several to hide how long an addition takes.
    """
    sums, count = 24 if isa.lanes == 16 else 12, 1
    while most % (2 * count) == 0 and 2 * count * rows <= sums:
        count *= 2
    return count


@cache
def attention(
    heads: int, kv_heads: int, head_dim: int, isa: Isa, kv_dtype: str
) -> tvm.tirx.PrimFunc:
    """Kernel arguments:

    rotated     float32 [m, heads * head_dim], scaled by log2(e) / sqrt(head_dim)
    pages       kv_dtype [pages, kv_heads, 2, PAGE * head_dim], holding the new tokens already
    position    int32 [m], place of each token in its sequence
    tiles       int32 [t, 3]: first token row, number of tokens, start of the page list
    page_ids    int32 [n], the sequences' pages, one list after the other; any page stands for one
                that is not seen
    window      int32 [2]: a token sees the last window[0] tokens, itself included, and the first
                window[1] of its sequence
    out         float32 [m, heads * head_dim]
    """
    L, D, share = isa.lanes, head_dim, heads // kv_heads
    QT, VP, VD = query_tile(heads, kv_heads, isa), PAGE // L, D // L
    f32, lane = f"float32x{L}", lanes_at(0, L)
    line = LINE_BYTES // {"float16": 2, "float32": 4}[kv_dtype]

    def visible(score: Any, first: Any, position: Any, window: Any) -> Any:
        token = T.ramp(first, 1, L)
        is_near = T.And(token <= splat(position, L), token > splat(position - window[0], L))
        is_sink = T.And(token <= splat(position, L), token < splat(window[1], L))
        return T.Select(T.Or(is_near, is_sink), score, fsplat(MASKED, L))

    def is_seen(first: Any, count: Any, oldest: Any, window: Any) -> Any:
        """Whether a token at `oldest`, or one after it, sees any of these places before it."""
        return T.Or(first < window[1], first + count > oldest - window[0] + 1)

    def weigh(score: Any, best: Any) -> Any:
        """A masked score weighs exactly nothing, not 2^-126."""
        hidden = score == fsplat(MASKED, L)
        return T.Select(hidden, fsplat(0.0, L), exp2(score - splat(best, L), L))

    def sections(position: Any) -> Any:
        return position // (PAGE * SECTION) + 1

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
        Q = T.match_buffer(rotated, (m, heads * D), "float32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, PAGE * D), kv_dtype)
        POS = T.match_buffer(position, (m,), "int32")
        TILE = T.match_buffer(tiles, (num_tiles, 3), "int32")
        IDS = T.match_buffer(page_ids, (n,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        O = T.match_buffer(out, (m, heads * D), "float32")

        @T.inline
        def ask(h, start, p, last):
            # Behind a sequence's last page come its pages of the next head, then the next sequence.
            index = T.alloc_buffer((1,), "int32")
            head = T.alloc_buffer((1,), "int32")
            index[0] = start + p
            head[0] = h
            if p > last:
                head[0] = T.if_then_else(h + 1 < kv_heads, h + 1, 0)
                if h + 1 < kv_heads:
                    index[0] = start + T.min(p - last - 1, last)
            _ask_for(P, IDS[T.min(index[0], n - 1)], head[0], line, PAGE * D // line)

        @T.inline
        def scores(s, token, h, start, first, count, last, rows):
            # Of `count` pages from page `first` on; those past the last are read as the last.
            group = T.meta_var(max(1, _at_once(rows * VP, SECTION, isa)))
            sums = T.alloc_buffer((group, rows, VP, L), "float32")
            key = T.alloc_buffer((group, VP, L), "float32")
            page = T.alloc_buffer((group,), "int32")
            for at in T.serial((count + group - 1) // group):
                for g in T.serial(group):
                    ask(h, start, first + at * group + g + AHEAD, last)
                for g in T.unroll(group):
                    page[g] = IDS[start + T.min(first + at * group + g, last)]
                    for r in T.unroll(rows):
                        for v in T.unroll(VP):
                            sums[g, r, v, lane] = fsplat(0.0, L)
                for d in T.serial(D):
                    for g in T.unroll(group):
                        for v in T.unroll(VP):
                            key[g, v, lane] = T.cast(
                                P[page[g], h, 0, lanes_at(d * PAGE + v * L, L)], f32
                            )
                    for r in T.unroll(rows):
                        for g in T.unroll(group):
                            for v in T.unroll(VP):
                                sums[g, r, v, lane] = sums[g, r, v, lane] + key[g, v, lane] * splat(
                                    Q[token[r // share], (h * share + r % share) * D + d], L
                                )
                for g in T.unroll(group):
                    for r in T.unroll(rows):
                        for v in T.unroll(VP):
                            s[r, lanes_at((at * group + g) * PAGE + v * L, L)] = visible(
                                sums[g, r, v, lane],
                                (first + at * group + g) * PAGE + v * L,
                                POS[token[r // share]],
                                W,
                            )

        @T.inline
        def softmax(s, best, weight, count, rows):
            part = T.alloc_buffer((L,), "float32")
            for r in T.serial(rows):
                part[lane] = s[r, lane]
                for v in T.serial(count * VP - 1):
                    part[lane] = T.max(part[lane], s[r, lanes_at((v + 1) * L, L)])
                best[r] = reduce_max(part, L)
                part[lane] = fsplat(0.0, L)
                for v in T.serial(count * VP):
                    s[r, lanes_at(v * L, L)] = weigh(s[r, lanes_at(v * L, L)], best[r])
                    part[lane] = part[lane] + s[r, lanes_at(v * L, L)]
                weight[r] = reduce_sum(part, L)

        @T.inline
        def values(s, o, h, start, first, count, oldest, tokens, rows):
            # Places past the newest token, and pages that are not seen, may hold anything: they
            # are never multiplied.
            group = T.meta_var(_at_once(rows, VD, isa))
            sums = T.alloc_buffer((group, rows, L), "float32")
            value = T.alloc_buffer((group, L), "float32")
            for d in T.unroll(VD // group):
                for g in T.unroll(group):
                    for r in T.unroll(rows):
                        sums[g, r, lane] = fsplat(0.0, L)
                for p in T.serial(count):
                    for i in T.serial(
                        T.Select(
                            is_seen((first + p) * PAGE, PAGE, oldest, W),
                            T.min(PAGE, tokens - p * PAGE),
                            0,
                        )
                    ):
                        for g in T.unroll(group):
                            value[g, lane] = T.cast(
                                P[
                                    IDS[start + first + p],
                                    h,
                                    1,
                                    lanes_at(i * D + (d * group + g) * L, L),
                                ],
                                f32,
                            )
                        for r in T.unroll(rows):
                            for g in T.unroll(group):
                                sums[g, r, lane] = sums[g, r, lane] + value[g, lane] * splat(
                                    s[r, p * PAGE + i], L
                                )
                for g in T.unroll(group):
                    for r in T.unroll(rows):
                        o[r, lanes_at((d * group + g) * L, L)] = sums[g, r, lane]

        @T.inline
        def section(s, o, best, weight, token, t, h, which, last, newest, rows):
            start: T.let[T.int32] = TILE[t, 2]
            first: T.let[T.int32] = which * SECTION
            count: T.let[T.int32] = T.min(SECTION, last + 1 - first)
            scores(s, token, h, start, first, count, last, rows)
            softmax(s, best, weight, count, rows)
            values(s, o, h, start, first, count, POS[token[0]], newest + 1 - first * PAGE, rows)

        @T.inline
        def fold(best, total, o, r, new_best, new_total, new_o, j):
            # Row r of a state takes in row j of another; both sides are scaled to the larger best.
            top = T.alloc_buffer((1,), "float32")
            old_part = T.alloc_buffer((L,), "float32")
            new_part = T.alloc_buffer((L,), "float32")
            top[0] = T.max(best[r], new_best[j])
            old_part[lane] = exp2(splat(best[r] - top[0], L), L)
            new_part[lane] = exp2(splat(new_best[j] - top[0], L), L)
            best[r] = top[0]
            total[r] = total[r] * old_part[0] + new_total[j] * new_part[0]
            for d in T.unroll(VD):
                o[r, lanes_at(d * L, L)] = (
                    o[r, lanes_at(d * L, L)] * old_part[lane]
                    + new_o[j, lanes_at(d * L, L)] * new_part[lane]
                )

        @T.inline
        def clear(best, total, o, r):
            best[r] = T.float32(MASKED)
            total[r] = T.float32(0)
            for d in T.unroll(VD):
                o[r, lanes_at(d * L, L)] = fsplat(0.0, L)

        @T.inline
        def write(o, total, r, row, head):
            for d in T.unroll(VD):
                O[row, lanes_at(head * D + d * L, L)] = o[r, lanes_at(d * L, L)] * splat(
                    T.float32(1) / total[r], L
                )

        @T.inline
        def walk(t, h, rows):
            # Row r is query head h * share + r % share of token first + min(r // share, count - 1).
            token = T.alloc_buffer((QT,), "int32")
            s = T.alloc_buffer((rows, SECTION * PAGE), "float32")
            new_o = T.alloc_buffer((rows, D), "float32")
            new_best = T.alloc_buffer((rows,), "float32")
            new_total = T.alloc_buffer((rows,), "float32")
            o = T.alloc_buffer((rows, D), "float32")
            best = T.alloc_buffer((rows,), "float32")
            total = T.alloc_buffer((rows,), "float32")
            for i in T.unroll(QT):
                token[i] = TILE[t, 0] + T.min(i, TILE[t, 1] - 1)
            for r in T.serial(rows):
                clear(best, total, o, r)
            newest: T.let[T.int32] = POS[token[QT - 1]]
            for which in T.serial(sections(newest)):
                if is_seen(which * SECTION * PAGE, SECTION * PAGE, POS[token[0]], W):
                    section(
                        s,
                        new_o,
                        new_best,
                        new_total,
                        token,
                        t,
                        h,
                        which,
                        newest // PAGE,
                        newest,
                        rows,
                    )
                    for r in T.serial(rows):
                        fold(best, total, o, r, new_best, new_total, new_o, r)
            for r in T.serial(rows):
                if r // share < TILE[t, 1]:
                    write(o, total, r, token[r // share], h * share + r % share)

        @T.inline
        def room(t, begin, width):
            # Places of tile t for results of its sections. A sequence that decodes has enough of
            # them; the tiles of a prompt share a page list, and all but the last have one place.
            begin[0] = TILE[t, 2] // SECTION + t
            width[0] = n // SECTION + num_tiles - begin[0]
            if t + 1 < num_tiles:
                width[0] = TILE[t + 1, 2] // SECTION + t + 1 - begin[0]

        @T.inline
        def find(unit, tile, begin, width):
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
            room(tile[0], begin, width)

        with T.sblock("root"):
            # Sections of one-token tiles wait here for the others of their tile.
            part_o = T.alloc_buffer(((n // SECTION + num_tiles) * heads, D), "float32")
            part_best = T.alloc_buffer(((n // SECTION + num_tiles) * heads,), "float32")
            part_total = T.alloc_buffer(((n // SECTION + num_tiles) * heads,), "float32")

            @T.inline
            def one(t, h, which, place):
                token = T.alloc_buffer((1,), "int32")
                s = T.alloc_buffer((share, SECTION * PAGE), "float32")
                o = T.alloc_buffer((share, D), "float32")
                best = T.alloc_buffer((share,), "float32")
                total = T.alloc_buffer((share,), "float32")
                token[0] = TILE[t, 0]
                newest: T.let[T.int32] = POS[token[0]]
                section(s, o, best, total, token, t, h, which, newest // PAGE, newest, share)
                for r in T.unroll(share):
                    part_best[place * heads + h * share + r] = best[r]
                    part_total[place * heads + h * share + r] = total[r]
                    for d in T.unroll(VD):
                        part_o[place * heads + h * share + r, lanes_at(d * L, L)] = o[
                            r, lanes_at(d * L, L)
                        ]

            for u in T.parallel(
                _spread_units((n // SECTION + num_tiles) * kv_heads, m > num_tiles)
            ):
                # Numbers in buffers, not names: a name is spelt out again wherever it is used,
                # and compiling takes three times as long.
                unit = T.alloc_buffer((1,), "int32")
                tile = T.alloc_buffer((1,), "int32")
                begin = T.alloc_buffer((1,), "int32")
                width = T.alloc_buffer((1,), "int32")
                which = T.alloc_buffer((1,), "int32")
                unit[0] = _spread(u, (n // SECTION + num_tiles) * kv_heads, m > num_tiles)
                if unit[0] < (n // SECTION + num_tiles) * kv_heads:
                    find(unit[0], tile, begin, width)
                    unit[0] = unit[0] - begin[0] * kv_heads
                    which[0] = unit[0] % width[0]
                    if TILE[tile[0], 1] > 1 or width[0] < sections(POS[TILE[tile[0], 0]]):
                        if which[0] == 0:
                            walk(tile[0], unit[0] // width[0], QT * share)
                    elif T.And(
                        which[0] < sections(POS[TILE[tile[0], 0]]),
                        is_seen(
                            which[0] * SECTION * PAGE, SECTION * PAGE, POS[TILE[tile[0], 0]], W
                        ),
                    ):
                        one(tile[0], unit[0] // width[0], which[0], begin[0] + which[0])
            for t in T.serial(num_tiles):
                begin = T.alloc_buffer((1,), "int32")
                width = T.alloc_buffer((1,), "int32")
                room(t, begin, width)
                if TILE[t, 1] == 1 and width[0] >= sections(POS[TILE[t, 0]]):
                    for head in T.serial(heads):
                        best = T.alloc_buffer((1,), "float32")
                        total = T.alloc_buffer((1,), "float32")
                        o = T.alloc_buffer((1, D), "float32")
                        clear(best, total, o, 0)
                        for which in T.serial(sections(POS[TILE[t, 0]])):
                            if is_seen(which * SECTION * PAGE, SECTION * PAGE, POS[TILE[t, 0]], W):
                                fold(
                                    best,
                                    total,
                                    o,
                                    0,
                                    part_best,
                                    part_total,
                                    part_o,
                                    (begin[0] + which) * heads + head,
                                )
                        write(o, total, 0, TILE[t, 0], head)

    return paged_attention


def _stride(units: Any, is_prompt: Any) -> Any:
    return T.if_then_else(is_prompt, T.max(units // SPREAD // 2, 1), 1)


def _spread_units(units: Any, is_prompt: Any) -> Any:
    """How many numbers `_spread` takes: a few more than there are units."""
    stride = _stride(units, is_prompt)
    return (units + stride - 1) // stride * stride


def _spread(u: Any, units: Any, is_prompt: Any) -> Any:
    """A different unit for each u; the units of a stretch of u are spread over all the work."""
    stride = _stride(units, is_prompt)
    columns = (units + stride - 1) // stride
    return u % stride * columns + u // stride


@T.inline
def _ask_for(P, page, h, line, lines):
    """Prefetches the keys and values of a head in a page; `line` elements are a cache line."""
    for kv in T.unroll(2):
        for i in T.serial(lines):
            T.evaluate(prefetch(P, page, h, kv, i * line))
