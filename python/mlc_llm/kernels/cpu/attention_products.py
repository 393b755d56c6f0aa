"""One KV split of some rows: its scores, their softmax, and the weighted sum of its values.

    for each group of pages:                     (as many as registers hold the scores of)
        for each element d of a head:
            scores[r, key] += keys[page, d, key] * query[r, d]
    mask, softmax
    for each group of vectors of a head:
        for each page, for each of its tokens i:
            sums[r, d] += values[page, i, d] * scores[r, i]

With `Shape.pairs` two elements of a head, or two tokens, are multiplied at once, as bfloat16.

scores      float32 [R, SPLIT_KEYS]; in pairs [R, SPLIT_KEYS + D / 2]: the scores, whose place
            SPLIT_KEYS / 2 words of weights take, then D / 2 words of the query
scales      float32 [pages of a group, groups of a head * PAGE], if pages hold bytes
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
from mlc_llm.kernels.cpu.attention_shape import (
    KV_SPLIT,
    SPLIT_KEYS,
    Arguments,
    QueryRows,
    Shape,
    before_window,
    is_seen,
    new_split,
    query_column,
)
from mlc_llm.kernels.cpu.attention_softmax import cap_scores, mask, softmax
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.bf16_pairs import dot, neighbours
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.page_bytes import read_scales, scales_at
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import GROUP, scale_groups

AHEAD = 8
"""Blocks that memory is asked for before they are multiplied, at least."""


def new_scores(shape: Shape, rows: int) -> Buffer:
    """The scores of so many rows, with nothing in them. In pairs, a row's query stands behind them:
    memory of its own would have to be asked for in each task."""
    query = shape.head_dim // 2 if shape.pairs else 0
    return T.alloc_buffer((rows, SPLIT_KEYS + query), "float32")


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
def _load_scales(shape, given, rows, scales, slot, page, kind):
    """The scales of a block into `scales[slot]`."""
    L = T.meta_var(shape.lanes)
    for at in T.unroll(scale_groups(shape.head_dim) * PAGE // L):
        scales[slot, lanes_at(at * L, L)] = read_scales(
            *(given.pages, page, rows.kv_head, kind),
            *(scales_at(PAGE, shape.head_dim, 0, at * L), L),
        )


def _new_scales(shape: Shape, blocks: int) -> Buffer | None:
    """Scratch for the scales of so many blocks; None where they have none."""
    if not shape.has_scales:
        return None
    return T.alloc_buffer((blocks, scale_groups(shape.head_dim) * PAGE), "float32")


def _key(
    shape: Shape, given: Arguments, scales: Buffer | None, at: tuple[Expr, Expr, Expr], d: Expr,
    token: Expr,
) -> Expr:  # fmt: skip
    """Element d of the keys of neighbouring tokens of a page. at: the block's place in `scales`,
    its page and its KV head."""
    slot, page, kv_head = at
    L = shape.lanes
    key = T.cast(given.pages[page, kv_head, 0, lanes_at(d * PAGE + token, L)], f"float32x{L}")
    if scales is None:
        return key
    return key * scales[slot, lanes_at(d // GROUP * PAGE + token, L)]


def _keys(
    shape: Shape, given: Arguments, scales: Buffer | None, at: tuple[Expr, Expr, Expr], d: Expr,
    token: Expr,
) -> Expr:  # fmt: skip
    """`_key`, in pairs with that of the next element."""
    if not shape.pairs:
        return _key(shape, given, scales, at, d, token)
    return round_pair(*(_key(shape, given, scales, at, d + i, token) for i in range(2)))


def _value(
    shape: Shape, given: Arguments, scales: Buffer | None, at: tuple[Expr, Expr], i: Expr, d: Expr
) -> Expr:
    """Elements of the value of token i of a page, from d on. at: page and KV head."""
    page, kv_head = at
    L = shape.lanes
    place = lanes_at(i * shape.head_dim + d, L)
    value = T.cast(given.pages[page, kv_head, 1, place], f"float32x{L}")
    if scales is None:
        return value
    return value * splat(scales[0, d // GROUP * PAGE + i], L)


def _with_product(shape: Shape, sums: Expr, x: Expr, y: Expr) -> Expr:
    """`sums` plus a vector times the same number, or words times the same word."""
    return dot(sums, x, y) if shape.pairs else sums + x * splat(y, shape.lanes)


def _query_at(shape: Shape, rows: QueryRows, column: Expr, r: Expr) -> tuple[Expr, Expr]:
    """Token and column in `Arguments.queries` of row r's query."""
    per_kv = shape.heads_per_kv
    return rows.token[r // per_kv], column + (rows.kv_head * per_kv + r % per_kv) * shape.head_dim


@T.inline
def _pair_queries(shape, given, rows, column, scores):
    """Queries as words."""
    L = T.meta_var(shape.lanes)
    for r in T.serial(rows.count):
        at = T.meta_var(_query_at(shape, rows, column, r))
        for e in T.unroll(shape.head_dim // (2 * L)):
            scores[r, lanes_at(SPLIT_KEYS + e * L, L)] = neighbours(
                given.queries[at[0], lanes_at(at[1] + 2 * e * L, L)],
                given.queries[at[0], lanes_at(at[1] + (2 * e + 1) * L, L)],
            )


def _query(
    shape: Shape, given: Arguments, rows: QueryRows, column: Expr, scores: Buffer, d: Expr,
    r: Expr,
) -> Expr:  # fmt: skip
    """Element d of row r's query; or it and the next one."""
    if shape.pairs:
        return scores[r, SPLIT_KEYS + d // 2]
    token, start = _query_at(shape, rows, column, r)
    return given.queries[token, start + d]


@T.inline
def _add_scores(shape, given, rows, column, scores, scales, sums, page, d, r, g0, count):
    """Adds what element d of row r's query gives, and in pairs the next one, for `count` pages of
    the group from g0 on."""
    L = T.meta_var(shape.lanes)
    lane = T.meta_var(lanes_at(0, L))
    for g in T.unroll(count):
        for v in T.unroll(PAGE // L):
            sums[g, r, v, lane] = _with_product(
                *(shape, sums[g, r, v, lane]),
                _keys(shape, given, scales, (g0 + g, page[g0 + g], rows.kv_head), d, v * L),
                _query(shape, given, rows, column, scores, d, r),
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
def _find_keys(given, rows, split, group, ahead, at, page, later, kind):
    """The pages of group `at`; those behind the last one are read as the last. `later` and `kind`
    (0: keys, 1: values) are the blocks to ask for: behind the keys come the first values."""
    for g in T.unroll(group):
        page[g] = given.page_ids[
            rows.list_start + T.min(split.first[0] + at * group + g, split.last[0])
        ]
        kind[g] = T.Select(at * group + g + ahead < split.count[0], 0, 1)
        later[g] = given.page_ids[
            rows.list_start
            + T.min(
                split.first[0] + at * group + g + ahead - kind[g] * split.count[0], split.last[0]
            )
        ]


@T.inline
def _score(shape, given, rows, split, column, scores):
    """Scores of all pages of a split, in groups."""
    group = T.meta_var(_pages_at_once(rows.count, shape))
    half = T.meta_var((group + 1) // 2)
    part = T.meta_var(shape.line // PAGE)  # rows of a page of keys in a cache line
    low = T.alloc_buffer((half, rows.count, PAGE // shape.lanes, shape.lanes), "float32")
    high = T.alloc_buffer((half, rows.count, PAGE // shape.lanes, shape.lanes), "float32")
    page = T.alloc_buffer((group,), "int32")
    later = T.alloc_buffer((group,), "int32")
    kind = T.alloc_buffer((group,), "int32")
    scales = T.meta_var(_new_scales(shape, group))
    for at in T.serial((split.count[0] + group - 1) // group):
        _find_keys(given, rows, split, group, _ahead(rows.count, shape), at, page, later, kind)
        if shape.has_scales:
            for g in T.unroll(group):
                _load_scales(shape, given, rows, scales, g, page[g], 0)
                _ask(given, later[g], rows.kv_head, kind[g], PAGE * shape.head_dim)
        _clear_scores(shape, low, half, rows.count)
        if group > 1:
            _clear_scores(shape, high, half, rows.count)
        for line in T.serial(shape.head_dim // part):
            for g in T.unroll(group):
                _ask(given, later[g], rows.kv_head, kind[g], line * shape.line)
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
        _store_scores(shape, scores, low, at * group, half, rows.count)
        if group > 1:
            _store_scores(shape, scores, high, at * group + half, half, rows.count)


@T.inline
def _clear_sums(L, sums, count, rows):
    """Sums of `count` vectors become 0."""
    for g in T.unroll(count):
        for r in T.unroll(rows):
            sums[g, r, lanes_at(0, L)] = fsplat(0.0, L)


@T.inline
def _pair_weights(L, scores, pages, rows):
    """Weights become words, in their own place."""
    for r in T.serial(rows):
        for v in T.serial((pages[0] * PAGE + 2 * L - 1) // (2 * L)):
            scores[r, lanes_at(v * L, L)] = neighbours(
                scores[r, lanes_at(2 * v * L, L)],
                scores[r, lanes_at((2 * v + 1) * L, L)],
            )


def _weight(shape: Shape, scores: Buffer, r: Expr, key: Expr) -> Expr:
    """Row r's weight of a key of the split; or of it and the next one."""
    return scores[r, key // shape.width]


def _values(
    shape: Shape, given: Arguments, scales: Buffer | None, at: tuple[Expr, Expr], i: Expr, d: Expr,
    width: int,
) -> Expr:  # fmt: skip
    """`_value`; in pairs with that of the next token, or, of `width` 1, with 0."""
    value = _value(shape, given, scales, at, i, d)
    if not shape.pairs:
        return value
    if width == 1:
        return round_pair(value, fsplat(0.0, shape.lanes))
    return round_pair(value, _value(shape, given, scales, at, i + 1, d))


@T.inline
def _add_values(shape, given, rows, scores, scales, sums, page, p, i, width, r, vector, count):
    """Adds `width` tokens from token i of page p of the split on, times their weights in row r, to
    `count` vectors."""
    lane = T.meta_var(lanes_at(0, shape.lanes))
    at = T.meta_var((page[0], rows.kv_head))
    for g in T.unroll(count):
        sums[g, r, lane] = _with_product(
            *(shape, sums[g, r, lane]),
            _values(shape, given, scales, at, i, (vector + g) * shape.lanes, width),
            _weight(shape, scores, r, p * PAGE + i),
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
    scales = T.meta_var(_new_scales(shape, 1))
    for d in T.unroll(shape.head_dim // L // group):
        _clear_sums(L, low, half, rows.count)
        if group > 1:
            _clear_sums(L, high, half, rows.count)
        for p in T.serial(split.count[0]):
            page[0] = given.page_ids[rows.list_start + split.first[0] + p]
            _find_later(shape, given, rows, split, split.first[0] + p, p, ahead, later)
            _count_values(given, split, p, tokens)
            if shape.has_scales:
                _load_scales(shape, given, rows, scales, 0, page[0], 1)
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
        _pair_queries(shape, given, rows, column, scores)
    _score(shape, given, rows, split, column, scores)
    cap_scores(shape, shape.lanes, scores, split.count, rows.count)
    if T.Or(
        (split.first[0] + split.count[0]) * PAGE > split.oldest[0] + 1,
        split.first[0] * PAGE <= split.before_newest[0],
    ):
        mask(shape, given, rows, split, scores)
    softmax(shape, scores, state, first_row, split.count, rows.count)
    if shape.pairs:
        _pair_weights(shape.lanes, scores, split.count, rows.count)
    _sum_values(shape, given, rows, split, scores, state, first_row)
