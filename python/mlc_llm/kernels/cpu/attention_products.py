"""One KV split of some rows: its scores, their softmax, and the weighted sum of its values.

    for each group of pages:                     (as many as registers hold the scores of)
        for each element d of a head:
            scores[r, key] += keys[page, d, key] * query[r, d]
    mask, softmax
    for each group of vectors of a head:
        for each page, for each of its tokens i:
            sums[r, d] += values[page, i, d] * scores[r, i]

With `Shape.pairs` two elements of a head, or two tokens, are multiplied at once.

scores, scales: see `attention_operands.py`
low, high   float32 [pages or vectors / 2, R, ...]: sums of one group, in registers
page        int32: pages of the group
later       int32: what memory is asked for meanwhile

Keys are read first, then values. Whoever multiplies a block (the keys or the values of a page)
asks the memory for the line that stands at the same place some blocks later in that order, so that
lines come evenly while the processor works.

The sums of a group have two buffers, since TVM keeps one of 1 KiB in memory and smaller ones in
registers.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.attention_operands import (
    keys_at,
    load_scales,
    new_scales,
    pair_queries,
    pair_weights,
    query_at,
    values_at,
    weight_at,
    with_product,
)
from mlc_llm.kernels.cpu.attention_shape import (
    KV_SPLIT,
    Shape,
    before_window,
    is_seen,
    new_split,
    query_column,
)
from mlc_llm.kernels.cpu.attention_softmax import cap_scores, mask, softmax
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at

AHEAD = 8
"""Blocks that memory is asked for before they are multiplied, at least."""
FEW = 2
"""Pages of a small group."""


def _at_once(rows: int, wide: int, most: int, shape: Shape) -> int:
    """How many pieces of `wide` vectors are multiplied by every row at once: a power of two that
    divides `most`.

    Few rows need several to hide how long an addition takes; sums and pieces stay in registers. In
    pairs, rounding a second piece does not hide behind the products of many rows.
    """
    sums, registers = (24, 28) if shape.lanes == 16 else (12, 16)
    if shape.pairs and rows > sums // 3:
        sums = rows
    count = 1
    while (
        most % (2 * count) == 0
        and 2 * count * rows * wide <= sums
        and 2 * count * (rows + 1) * wide <= registers
    ):
        count *= 2
    return count


def _pages_at_once(rows: int, shape: Shape) -> int:
    """Pages whose keys are multiplied at once."""
    return _at_once(rows, PAGE // shape.lanes, KV_SPLIT, shape)


def _vectors_at_once(rows: int, shape: Shape) -> int:
    """Vectors of a head whose values are multiplied at once."""
    return _at_once(rows, 1, shape.head_dim // shape.lanes, shape)


def _ahead(rows: int, shape: Shape) -> int:
    """Blocks between the one that is multiplied and the one that is asked for."""
    return max(AHEAD, _pages_at_once(rows, shape))


@T.inline
def _ask(given, page, kv_head, kind, element):
    """Asks the memory for the cache line of an element of a block."""
    T.evaluate(prefetch(given.pages, page, kv_head, kind, element, cache=2))


@T.inline
def _clear_scores(shape, sums, count, rows):
    """Sums of `count` pages become 0."""
    L = T.meta_var(shape.lanes)
    for g in T.unroll(count):
        for r in T.unroll(rows):
            for v in T.unroll(PAGE // L):
                sums[g, r, v, lanes_at(0, L)] = fsplat(0.0, L)


@T.inline
def _add_scores(shape, given, rows, column, scores, scales, sums, page, d, r, g0, count):
    """Adds what element d of row r's query gives, and in pairs the next one, for `count` pages of
    the group from g0 on."""
    L = T.meta_var(shape.lanes)
    lane = T.meta_var(lanes_at(0, L))
    for g in T.unroll(count):
        for v in T.unroll(PAGE // L):
            sums[g, r, v, lane] = with_product(
                *(shape, sums[g, r, v, lane]),
                keys_at(shape, given, scales, (g0 + g, page[g0 + g], rows.kv_head), d, v * L),
                query_at(shape, given, rows, column, scores, d, r),
            )


@T.inline
def _store_scores(shape, scores, sums, page, count, rows):
    """Sums of `count` pages become the scores of the split's pages from `page` on."""
    L = T.meta_var(shape.lanes)
    for g in T.unroll(count):
        for r in T.unroll(rows):
            for v in T.unroll(PAGE // L):
                scores[r, lanes_at((page + g) * PAGE + v * L, L)] = sums[g, r, v, lanes_at(0, L)]


@T.inline
def _find_keys(given, rows, split, first, ahead, group, page, later, kind):
    """The `group` pages of the split from its page `first` on; those behind the last one are read
    as the last. `later` and `kind` (0: keys, 1: values) are the blocks to ask for: behind the keys
    come the first values."""
    for g in T.unroll(group):
        page[g] = given.page_ids[rows.list_start + T.min(split.first[0] + first + g, split.last[0])]
        kind[g] = T.Select(first + g + ahead < split.count[0], 0, 1)
        later[g] = given.page_ids[
            rows.list_start
            + T.min(split.first[0] + first + g + ahead - kind[g] * split.count[0], split.last[0])
        ]


@T.inline
def _score_groups(shape, given, rows, split, column, scores, first, count, group):
    """Scores of `count` groups of `group` pages of a split, from its page `first` on."""
    half = T.meta_var((group + 1) // 2)
    part = T.meta_var(shape.line // PAGE)  # rows of a page of keys in a cache line
    lines = T.meta_var(shape.head_dim // part)
    low = T.alloc_buffer((half, rows.count, PAGE // shape.lanes, shape.lanes), "float32")
    high = T.alloc_buffer((half, rows.count, PAGE // shape.lanes, shape.lanes), "float32")
    page = T.alloc_buffer((group,), "int32")
    later = T.alloc_buffer((group,), "int32")
    kind = T.alloc_buffer((group,), "int32")
    scales = T.meta_var(new_scales(shape, group))
    for at in T.serial(count):
        start: T.let[T.int32] = first + at * group
        _find_keys(given, rows, split, start, _ahead(rows.count, shape), group, page, later, kind)
        if shape.has_scales:
            for g in T.unroll(group):
                load_scales(shape, given, rows, scales, g, page[g], 0)
                _ask(given, later[g], rows.kv_head, kind[g], PAGE * shape.head_dim)
        _clear_scores(shape, low, half, rows.count)
        if group > 1:
            _clear_scores(shape, high, half, rows.count)
        for line in T.serial(lines):
            for g in T.unroll(group):  # in the order of addresses
                block = T.meta_var((line * group + g) // lines)
                at_line = T.meta_var((line * group + g) % lines)
                _ask(given, later[block], rows.kv_head, kind[block], at_line * shape.line)
            for i in T.unroll(part // shape.width):
                for r in T.unroll(rows.count):
                    _add_scores(
                        *(shape, given, rows, column, scores, scales, low, page),
                        *(line * part + i * shape.width, r, 0, half),
                    )
                    if group > 1:
                        _add_scores(
                            *(shape, given, rows, column, scores, scales, high, page),
                            *(line * part + i * shape.width, r, half, half),
                        )
        _store_scores(shape, scores, low, start, half, rows.count)
        if group > 1:
            _store_scores(shape, scores, high, start + half, half, rows.count)


@T.inline
def _score(shape, given, rows, split, column, scores):
    """Scores of all pages of a split, in groups; where half a group is enough for the last ones, in
    small groups."""
    group = T.meta_var(_pages_at_once(rows.count, shape))
    if group <= FEW:
        _score_groups(
            *(shape, given, rows, split, column, scores),
            *(0, (split.count[0] + group - 1) // group, group),
        )
    else:
        groups: T.let[T.int32] = (split.count[0] + group // 2 - 1) // group
        _score_groups(shape, given, rows, split, column, scores, 0, groups, group)
        _score_groups(
            *(shape, given, rows, split, column, scores, groups * group),
            *((split.count[0] - groups * group + FEW - 1) // FEW, FEW),
        )


@T.inline
def _clear_sums(L, sums, count, rows):
    """Sums of `count` vectors become 0."""
    for g in T.unroll(count):
        for r in T.unroll(rows):
            sums[g, r, lanes_at(0, L)] = fsplat(0.0, L)


@T.inline
def _add_values(shape, given, rows, scores, scales, sums, page, p, i, width, r, vector, count):
    """Adds `width` tokens from token i of page p of the split on, times their weights in row r, to
    `count` vectors."""
    lane = T.meta_var(lanes_at(0, shape.lanes))
    at = T.meta_var((page[0], rows.kv_head))
    for g in T.unroll(count):
        sums[g, r, lane] = with_product(
            *(shape, sums[g, r, lane]),
            values_at(shape, given, scales, at, i, (vector + g) * shape.lanes, width),
            weight_at(shape, scores, r, p * PAGE + i),
        )


@T.inline
def _store_sums(L, state, first_row, sums, vector, count, rows):
    """`count` sums become the vectors from `vector` on of the rows' results."""
    for g in T.unroll(count):
        for r in T.unroll(rows):
            state.sums[first_row[0] + r, lanes_at((vector + g) * L, L)] = sums[g, r, lanes_at(0, L)]


@T.inline
def _find_later(shape, given, rows, split, page, p, ahead, later):
    """later: page, KV head and kind (0: keys, 1: values) of the block to ask for, and its index in
    `page_ids`. Behind the split's values come the next split's keys, behind a sequence's last page
    those of its next head, then the next sequence's."""
    later[1] = rows.kv_head
    later[2] = T.Select(p + ahead < split.count[0], 1, 0)
    later[3] = rows.list_start + page + ahead
    if page + ahead > split.last[0]:
        later[1] = T.Select(rows.kv_head + 1 < shape.kv_heads, rows.kv_head + 1, 0)
        later[3] = T.Select(
            rows.kv_head + 1 < shape.kv_heads,
            rows.list_start + T.min(page + ahead - split.last[0] - 1, split.last[0]),
            T.min(rows.list_start + page + ahead, given.id_count - 1),
        )
    later[0] = given.page_ids[later[3]]


@T.inline
def _count_values(given, split, p, tokens):
    """tokens[0]: how many tokens of page p of the split have a weight. Values of others may be
    anything, so they must not be multiplied."""
    tokens[0] = T.min(PAGE, split.newest[0] + 1 - (split.first[0] + p) * PAGE)
    if T.Not(is_seen((split.first[0] + p) * PAGE, PAGE, split.before_oldest[0], given.window)):
        tokens[0] = 0


@T.inline
def _add_tokens(
    shape, given, rows, scores, scales, low, high, page, p, i, width, later, vector, group
):
    """Adds `width` tokens from token i of page p on to the `group` vectors from `vector` on."""
    half = T.meta_var((group + 1) // 2)
    for j in T.unroll(width):
        for x in T.unroll(max(1, group * shape.lanes // shape.line)):
            _ask(
                *(given, later[0], later[1], later[2]),
                (i + j) * shape.head_dim + vector * shape.lanes + x * shape.line,
            )
    for r in T.unroll(rows.count):
        _add_values(*(shape, given, rows, scores, scales, low, page, p, i, width, r, vector, half))
        if group > 1:
            _add_values(
                *(shape, given, rows, scores, scales, high, page, p, i, width),
                *(r, vector + half, half),
            )


@T.inline
def _add_page(shape, given, rows, scores, scales, low, high, page, p, tokens, later, vector, group):
    """Adds the tokens of page p of the split to the `group` vectors from `vector` on."""
    for step in T.serial(tokens[0] // shape.width):
        _add_tokens(
            *(shape, given, rows, scores, scales, low, high, page, p),
            *(step * shape.width, shape.width, later, vector, group),
        )
    if shape.pairs:
        if tokens[0] % 2 == 1:
            _add_tokens(
                *(shape, given, rows, scores, scales, low, high, page, p),
                *(tokens[0] - 1, 1, later, vector, group),
            )


@T.inline
def _sum_values(shape, given, rows, split, scores, state, first_row):
    """The values of a split, each times its weight, as sums of the rows from `first_row[0]` on."""
    L = T.meta_var(shape.lanes)
    group = T.meta_var(_vectors_at_once(rows.count, shape))
    ahead = T.meta_var(_ahead(rows.count, shape))
    half = T.meta_var((group + 1) // 2)
    low = T.alloc_buffer((half, rows.count, L), "float32")
    high = T.alloc_buffer((half, rows.count, L), "float32")
    page = T.alloc_buffer((1,), "int32")
    later = T.alloc_buffer((4,), "int32")
    tokens = T.alloc_buffer((1,), "int32")
    scales = T.meta_var(new_scales(shape, 1))
    for d in T.unroll(shape.head_dim // L // group):
        _clear_sums(L, low, half, rows.count)
        if group > 1:
            _clear_sums(L, high, half, rows.count)
        for p in T.serial(split.count[0]):
            page[0] = given.page_ids[rows.list_start + split.first[0] + p]
            _find_later(shape, given, rows, split, split.first[0] + p, p, ahead, later)
            _count_values(given, split, p, tokens)
            if shape.has_scales:
                load_scales(shape, given, rows, scales, 0, page[0], 1)
                _ask(given, later[0], later[1], later[2], PAGE * shape.head_dim)
            _add_page(
                *(shape, given, rows, scores, scales, low, high),
                *(page, p, tokens, later, d * group, group),
            )
        _store_sums(L, state, first_row, low, d * group, half, rows.count)
        if group > 1:
            _store_sums(L, state, first_row, high, d * group + half, half, rows.count)


@T.inline
def attend_split(shape, given, rows, which, scores, state, first_row):
    """The softmax of KV split `which` alone, into the rows of `state` from `first_row[0]` on.

    Places behind the newest token, and pages that are not seen, may hold anything: their scores are
    masked, their values are never multiplied.
    """
    split = T.meta_var(new_split())
    split.oldest[0] = given.place[rows.token[0]]
    split.newest[0] = given.place[rows.token[(rows.count - 1) // shape.heads_per_kv]]
    split.before_oldest[0] = before_window(shape, given, rows.token[0])
    split.before_newest[0] = before_window(
        shape, given, rows.token[(rows.count - 1) // shape.heads_per_kv]
    )
    split.last[0] = split.newest[0] // PAGE
    split.first[0] = which * KV_SPLIT
    split.count[0] = T.min(KV_SPLIT, split.last[0] + 1 - split.first[0])
    column: T.let[T.int32] = query_column(shape, split.first[0] * PAGE, given.window)
    if shape.pairs:
        pair_queries(shape, given, rows, column, scores)
    _score(shape, given, rows, split, column, scores)
    cap_scores(shape, shape.lanes, scores, split.count, rows.count)
    if T.Or(
        (split.first[0] + split.count[0]) * PAGE > split.oldest[0] + 1,
        split.first[0] * PAGE <= split.before_newest[0],
    ):
        mask(shape, given, rows, split, scores)
    softmax(shape, scores, state, first_row, split.count, rows.count)
    if shape.pairs:
        pair_weights(shape.lanes, scores, split.count, rows.count)
    _sum_values(shape, given, rows, split, scores, state, first_row)
