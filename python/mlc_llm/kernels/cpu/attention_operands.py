"""What the products of attention take: keys, values, queries and weights, as numbers or as words.

With `Shape.pairs` two elements of a head, or two tokens, are multiplied at once, as bfloat16: a
word has both. Otherwise a product takes one float32 of each side.

scores      float32 [R, SPLIT_KEYS]; in pairs [R, SPLIT_KEYS + D / 2]: the scores, whose place
            SPLIT_KEYS / 2 words of weights take, then D / 2 words of the query
scales      float32 [pages of a group, groups of a head * PAGE], if pages hold bytes
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.attention_shape import SPLIT_KEYS, Arguments, QueryRows, Shape
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.bf16_pairs import dot, neighbours
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.page_bytes import read_scales, scales_at
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import GROUP, scale_groups


def new_scores(shape: Shape, rows: int) -> Buffer:
    """The scores of so many rows, with nothing in them. In pairs, a row's query stands behind them:
    memory of its own would have to be asked for in each task."""
    query = shape.head_dim // 2 if shape.pairs else 0
    return T.alloc_buffer((rows, SPLIT_KEYS + query), "float32")


def new_scales(shape: Shape, blocks: int) -> Buffer | None:
    """Scratch for the scales of so many blocks; None where they have none."""
    if not shape.has_scales:
        return None
    return T.alloc_buffer((blocks, scale_groups(shape.head_dim) * PAGE), "float32")


@T.inline
def load_scales(shape, given, rows, scales, slot, page, kind):
    """The scales of a block into `scales[slot]`."""
    L = T.meta_var(shape.lanes)
    for at in T.unroll(scale_groups(shape.head_dim) * PAGE // L):
        scales[slot, lanes_at(at * L, L)] = read_scales(
            *(given.pages, page, rows.kv_head, kind),
            *(scales_at(PAGE, shape.head_dim, 0, at * L), L),
        )


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


def keys_at(
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


def values_at(
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


def _query_place(shape: Shape, rows: QueryRows, column: Expr, r: Expr) -> tuple[Expr, Expr]:
    """Token and column in `Arguments.queries` of row r's query."""
    per_kv = shape.heads_per_kv
    return rows.token[r // per_kv], column + (rows.kv_head * per_kv + r % per_kv) * shape.head_dim


@T.inline
def pair_queries(shape, given, rows, column, scores):
    """Queries as words."""
    L = T.meta_var(shape.lanes)
    for r in T.serial(rows.count):
        at = T.meta_var(_query_place(shape, rows, column, r))
        for e in T.unroll(shape.head_dim // (2 * L)):
            scores[r, lanes_at(SPLIT_KEYS + e * L, L)] = neighbours(
                given.queries[at[0], lanes_at(at[1] + 2 * e * L, L)],
                given.queries[at[0], lanes_at(at[1] + (2 * e + 1) * L, L)],
            )


def query_at(
    shape: Shape, given: Arguments, rows: QueryRows, column: Expr, scores: Buffer, d: Expr,
    r: Expr,
) -> Expr:  # fmt: skip
    """Element d of row r's query; or it and the next one."""
    if shape.pairs:
        return scores[r, SPLIT_KEYS + d // 2]
    token, start = _query_place(shape, rows, column, r)
    return given.queries[token, start + d]


@T.inline
def pair_weights(L, scores, pages, rows):
    """Weights become words, in their own place."""
    for r in T.serial(rows):
        for v in T.serial((pages[0] * PAGE + 2 * L - 1) // (2 * L)):
            scores[r, lanes_at(v * L, L)] = neighbours(
                scores[r, lanes_at(2 * v * L, L)],
                scores[r, lanes_at((2 * v + 1) * L, L)],
            )


def weight_at(shape: Shape, scores: Buffer, r: Expr, key: Expr) -> Expr:
    """Row r's weight of a key of the split; or of it and the next one."""
    return scores[r, key // shape.width]


def with_product(shape: Shape, sums: Expr, x: Expr, y: Expr) -> Expr:
    """`sums` plus a vector times the same number, or words times the same word."""
    return dot(sums, x, y) if shape.pairs else sums + x * splat(y, shape.lanes)
