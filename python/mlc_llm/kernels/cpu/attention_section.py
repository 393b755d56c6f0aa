"""What attention does with one section of keys and values: scores, softmax, weighted sum.

A section is `SECTION` pages, seen by several rows of queries: the query heads that share a
key/value head, times the tokens of a tile. Its keys are read first, then its values. Whoever
multiplies a block (the keys or the values of a page) asks the memory for the line that stands at
the same place some blocks later in that order, so that lines come evenly while the processor works.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.vectors import exp2, fsplat, lanes_at, reduce_max, reduce_sum, splat

SECTION = 8
"""Pages a section."""
MASKED = -1.0e30
AHEAD = 4
"""Blocks that memory is asked for before they are multiplied, at least: half of them would be too
late, and many more do not stay in the nearest cache."""


class Shape(NamedTuple):
    """Sizes that all parts of a kernel share."""

    heads: int
    kv_heads: int
    head_dim: int
    isa: Isa
    kv_dtype: str
    sink_query: bool = False
    """Sinks are seen with a query of their own."""

    @property
    def share(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> int:
        """Elements of a row of queries; with a window there are two, the second one for sinks."""
        return (2 if self.sink_query else 1) * self.heads * self.head_dim

    @property
    def line(self) -> int:
        """Elements of a page in a cache line."""
        return LINE_BYTES // {"float16": 2, "float32": 4}[self.kv_dtype]


def _at_once(rows: int, wide: int, most: int, isa: Isa) -> int:
    """How many pieces of `wide` vectors are multiplied by every row at once: a power of two.

    Few rows need several to hide how long an addition takes; sums and pieces stay in registers.
    """
    sums, registers = (24, 28) if isa.lanes == 16 else (12, 16)
    count = 1
    while (
        most % (2 * count) == 0
        and 2 * count * rows * wide <= sums
        and 2 * count * (rows + 1) * wide <= registers
    ):
        count *= 2
    return count


def _pages_at_once(rows: int, isa: Isa) -> int:
    """Pages whose keys are multiplied at once."""
    return _at_once(rows, PAGE // isa.lanes, SECTION, isa)


def _ahead(rows: int, isa: Isa) -> int:
    """Blocks between the one that is multiplied and the one that is asked for."""
    return max(AHEAD, _pages_at_once(rows, isa))


def _few(rows: int) -> int:
    """The most rows, of up to four, that divide so many."""
    return next(count for count in (4, 3, 2, 1) if rows % count == 0)


def is_seen(first: Any, count: Any, oldest: Any, window: Any) -> Any:
    """Whether a token at `oldest`, or one after it, sees any of these places before it."""
    return T.Or(first < window[1], first + count > oldest - window[0] + 1)


def query_column(shape: Shape, first: Any, window: Any) -> Any:
    """Where the queries for the section with place `first` begin in a row."""
    if not shape.sink_query:
        return T.int32(0)
    return T.Select(first < window[1], T.int32(shape.heads * shape.head_dim), T.int32(0))


def section_parts(shape: Shape) -> Any:
    """Statements for one section, as an inline function (see `section` below)."""
    scores = _scores(shape)
    mask, softmax = softmax_parts(shape)
    values = _values(shape)

    @T.inline
    def section(P, Q, POS, IDS, W, s, o, best, weight, row, token, start, n, h, which, rows):
        """Rows row[0] to row[0] + rows of o, best and weight: of tokens POS[token[r // share]].

        Places past the newest token, and pages that are not seen, may hold anything: their scores
        are masked, their values are never multiplied.
        """
        first = T.alloc_buffer((1,), "int32")
        last = T.alloc_buffer((1,), "int32")
        count = T.alloc_buffer((1,), "int32")
        newest = T.alloc_buffer((1,), "int32")
        oldest = T.alloc_buffer((1,), "int32")
        oldest[0] = POS[token[0]]
        newest[0] = POS[token[(rows - 1) // shape.share]]
        last[0] = newest[0] // PAGE
        first[0] = which * SECTION
        count[0] = T.min(SECTION, last[0] + 1 - first[0])
        column: T.let[T.int32] = query_column(shape, first[0] * PAGE, W)
        scores(P, Q, IDS, s, token, column, start, h, first, count, last, rows)
        if T.Or((first[0] + count[0]) * PAGE > oldest[0] + 1, first[0] * PAGE <= newest[0] - W[0]):
            mask(s, POS, W, token, first, count, rows)
        softmax(s, best, weight, row, count, rows)
        values(P, IDS, W, s, o, row, start, n, h, first, count, last, oldest, newest, rows)

    return section


def _scores(shape: Shape) -> Any:
    L, D, share, isa = shape.isa.lanes, shape.head_dim, shape.share, shape.isa
    VP, lane, f32 = PAGE // L, lanes_at(0, L), f"float32x{L}"
    part = shape.line // PAGE
    """Rows of a page of keys in a cache line."""

    @T.inline
    def cleared(sums, count, rows):
        for g in T.unroll(count):
            for r in T.unroll(rows):
                for v in T.unroll(VP):
                    sums[g, r, v, lane] = fsplat(0.0, L)

    @T.inline
    def added(sums, P, page, Q, token, column, h, d, r, g0, count):
        for g in T.unroll(count):
            for v in T.unroll(VP):
                sums[g, r, v, lane] = sums[g, r, v, lane] + T.cast(
                    P[page[g0 + g], h, 0, lanes_at(d * PAGE + v * L, L)], f32
                ) * splat(Q[token[r // share], column + (h * share + r % share) * D + d], L)

    @T.inline
    def stored(s, sums, page, count, rows):
        for g in T.unroll(count):
            for r in T.unroll(rows):
                for v in T.unroll(VP):
                    s[r, lanes_at((page + g) * PAGE + v * L, L)] = sums[g, r, v, lane]

    @T.inline
    def scores(P, Q, IDS, s, token, column, start, h, first, count, last, rows):
        # Of `count` pages from page `first` on; those past the last are read as the last. The sums
        # have two buffers, for TVM keeps one of 1 KiB in memory and smaller ones in registers.
        group = T.meta_var(_pages_at_once(rows, isa))
        ahead = T.meta_var(_ahead(rows, isa))
        half = T.meta_var((group + 1) // 2)
        low = T.alloc_buffer((half, rows, VP, L), "float32")
        high = T.alloc_buffer((half, rows, VP, L), "float32")
        page = T.alloc_buffer((group,), "int32")
        later = T.alloc_buffer((group,), "int32")
        kind = T.alloc_buffer((group,), "int32")
        for at in T.serial((count[0] + group - 1) // group):
            for g in T.unroll(group):
                page[g] = IDS[start + T.min(first[0] + at * group + g, last[0])]
                # Behind the section's last keys come its first values.
                kind[g] = T.Select(at * group + g + ahead < count[0], 0, 1)
                later[g] = IDS[
                    start + T.min(first[0] + at * group + g + ahead - kind[g] * count[0], last[0])
                ]
            cleared(low, half, rows)
            if group > 1:
                cleared(high, half, rows)
            for line in T.serial(D // part):
                for g in T.unroll(group):
                    T.evaluate(prefetch(P, later[g], h, kind[g], line * shape.line))
                for i in T.unroll(part):
                    for r in T.unroll(rows):
                        added(low, P, page, Q, token, column, h, line * part + i, r, 0, half)
                        if group > 1:
                            added(
                                *(high, P, page, Q, token, column, h, line * part + i, r),
                                *(half, half),
                            )
            stored(s, low, at * group, half, rows)
            if group > 1:
                stored(s, high, at * group + half, half, rows)

    return scores


def seen_score(score: Any, first: Any, position: Any, window: Any, lanes: int) -> Any:
    """Scores of places from `first` on, masked where a token at `position` does not see them."""
    token = T.ramp(first, 1, lanes)
    is_near = T.And(token <= splat(position, lanes), token > splat(position - window[0], lanes))
    is_sink = T.And(token <= splat(position, lanes), token < splat(window[1], lanes))
    return T.Select(T.Or(is_near, is_sink), score, fsplat(MASKED, lanes))


def softmax_parts(shape: Shape) -> Any:
    """Inline functions that mask scores, and that turn them into weights."""
    L, share = shape.isa.lanes, shape.share
    VP, lane = PAGE // L, lanes_at(0, L)

    def weigh(score: Any, best: Any) -> Any:
        """A masked score weighs exactly nothing, not 2^-126."""
        hidden = score == fsplat(MASKED, L)
        return T.Select(hidden, fsplat(0.0, L), exp2(score - splat(best, L), L))

    @T.inline
    def mask(s, POS, W, token, first, count, rows):
        for r in T.serial(rows):
            for v in T.serial(count[0] * VP):
                s[r, lanes_at(v * L, L)] = seen_score(
                    s[r, lanes_at(v * L, L)], first[0] * PAGE + v * L, POS[token[r // share]], W, L
                )

    @T.inline
    def softmax(s, best, weight, row, count, rows):
        # Several rows side by side: one alone would wait for each of its sums.
        few = T.meta_var(_few(rows))
        part = T.alloc_buffer((few, L), "float32")
        top = T.alloc_buffer((few,), "float32")
        for r0 in T.serial(rows // few):
            for r in T.unroll(few):
                part[r, lane] = s[r0 * few + r, lane]
            for v in T.serial(count[0] * VP - 1):
                for r in T.unroll(few):
                    part[r, lane] = T.max(part[r, lane], s[r0 * few + r, lanes_at((v + 1) * L, L)])
            for r in T.unroll(few):
                top[r] = reduce_max(part, L, r)
                best[row[0] + r0 * few + r] = top[r]
                part[r, lane] = fsplat(0.0, L)
            for v in T.serial(count[0] * VP):
                for r in T.unroll(few):
                    s[r0 * few + r, lanes_at(v * L, L)] = weigh(
                        s[r0 * few + r, lanes_at(v * L, L)], top[r]
                    )
                    part[r, lane] = part[r, lane] + s[r0 * few + r, lanes_at(v * L, L)]
            for r in T.unroll(few):
                weight[row[0] + r0 * few + r] = reduce_sum(part, L, r)

    return mask, softmax


def _values(shape: Shape) -> Any:
    L, D, isa = shape.isa.lanes, shape.head_dim, shape.isa
    VD, lane, f32 = D // L, lanes_at(0, L), f"float32x{L}"

    @T.inline
    def cleared(sums, count, rows):
        for g in T.unroll(count):
            for r in T.unroll(rows):
                sums[g, r, lane] = fsplat(0.0, L)

    @T.inline
    def added(sums, P, page, h, d0, s, p, i, r, g0, count):
        for g in T.unroll(count):
            sums[g, r, lane] = sums[g, r, lane] + T.cast(
                P[page[0], h, 1, lanes_at(i * D + (d0 + g0 + g) * L, L)], f32
            ) * splat(s[r, p * PAGE + i], L)

    @T.inline
    def stored(o, sums, row, d, count, rows):
        for g in T.unroll(count):
            for r in T.unroll(rows):
                o[row[0] + r, lanes_at((d + g) * L, L)] = sums[g, r, lane]

    @T.inline
    def next_block(IDS, later, start, n, h, page, count, last, p, ahead):
        # later: page, head and kind. Behind the section's values come the next section's keys,
        # behind a sequence's last page those of its next head, then the next sequence's.
        later[1] = h
        later[2] = T.Select(p + ahead < count[0], 1, 0)
        later[3] = start + page + ahead
        if page + ahead > last[0]:
            later[1] = T.Select(h + 1 < shape.kv_heads, h + 1, 0)
            later[3] = T.Select(
                h + 1 < shape.kv_heads,
                start + T.min(page + ahead - last[0] - 1, last[0]),
                T.min(start + page + ahead, n - 1),
            )
        later[0] = IDS[later[3]]

    @T.inline
    def values(P, IDS, W, s, o, row, start, n, h, first, count, last, oldest, newest, rows):
        group = T.meta_var(_at_once(rows, 1, VD, isa))
        ahead = T.meta_var(_ahead(rows, isa))
        half = T.meta_var((group + 1) // 2)
        low = T.alloc_buffer((half, rows, L), "float32")
        high = T.alloc_buffer((half, rows, L), "float32")
        page = T.alloc_buffer((1,), "int32")
        later = T.alloc_buffer((4,), "int32")
        tokens = T.alloc_buffer((1,), "int32")
        for d in T.unroll(VD // group):
            cleared(low, half, rows)
            if group > 1:
                cleared(high, half, rows)
            for p in T.serial(count[0]):
                page[0] = IDS[start + first[0] + p]
                next_block(IDS, later, start, n, h, first[0] + p, count, last, p, ahead)
                tokens[0] = T.min(PAGE, newest[0] + 1 - (first[0] + p) * PAGE)
                if T.Not(is_seen((first[0] + p) * PAGE, PAGE, oldest[0], W)):
                    tokens[0] = 0
                for i in T.serial(tokens[0]):
                    for x in T.unroll(max(1, group * L // shape.line)):
                        T.evaluate(
                            prefetch(
                                P,
                                later[0],
                                later[1],
                                later[2],
                                i * D + d * group * L + x * shape.line,
                            )
                        )
                    for r in T.unroll(rows):
                        added(low, P, page, h, d * group, s, p, i, r, 0, half)
                        if group > 1:
                            added(high, P, page, h, d * group, s, p, i, r, half, half)
            stored(o, low, row, d * group, half, rows)
            if group > 1:
                stored(o, high, row, d * group + half, half, rows)

    return values


def folding(lanes: int, head_dim: int) -> Any:
    """Inline functions on a row's state, its best score, total weight and weighted sum of values:
    to begin with, to take in another row's, and to write the result."""
    L, D = lanes, head_dim
    VD, lane = D // L, lanes_at(0, L)

    @T.inline
    def clear(best, total, o, r):
        best[r] = T.float32(MASKED)
        total[r] = T.float32(0)
        for d in T.unroll(VD):
            o[r, lanes_at(d * L, L)] = fsplat(0.0, L)

    @T.inline
    def fold(best, total, o, r, new_best, new_total, new_o, j):
        # Row r takes in row j of another state; both sides are scaled to the larger best.
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
    def write(O, o, total, r, row, head):
        for d in T.unroll(VD):
            O[row, lanes_at(head * D + d * L, L)] = o[r, lanes_at(d * L, L)] * splat(
                T.float32(1) / total[r], L
            )

    return clear, fold, write
