"""The tiles of attention of fast tokens (`fast_attention.py`), and their products.

    score:       scores[32 rows, 32 tokens] = sum over 32 elements: query tiles x key tiles
    sum_values:  weights = scores as tiles
                 sums[32 rows, 32 elements] = sum over 32 tokens: weight tiles x value tiles

All tiles are bfloat16: a 32-bit word holds elements i (low half) and i + 16 (high half) of 32,
which are elements of a head, or tokens of two pages.

Buffers of a task (`Scratch`); D = head_dim, R = rows, a multiple of 32:

queries   int32 [R / 16, D / 32, 16, 16]   tiles: 16 rows, words of 32 elements
keys      int32 [8, D / 32, 16, 16]        tiles of a page: words of 32 elements, 16 tokens
values    int32 [D / 16, 4, 16, 16]        tiles of a pair of pages: words of 32 tokens, 16 elements
weights   int32 [2, 4, 16, 16]             tiles of 16 rows: words of 32 tokens of a pair of pages
scores    float32 [32, 128]
part      `Softmax` of 32 rows: what one split gave
state     `Softmax` of R rows: what all splits so far gave
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_pipeline import L
from mlc_llm.kernels.cpu.attention_shape import KV_SPLIT, SPLIT_KEYS, Arguments, Shape, is_seen
from mlc_llm.kernels.cpu.attention_softmax import Softmax, new_softmax
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.page_bytes import read_scales, scales_at
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import GROUP
from mlc_llm.record import record

MOST_ROWS = 128
"""Rows of a task."""
PAIR = 2 * ROWS
"""Rows, or elements of a head, that are multiplied together."""
PAGE_PAIRS = KV_SPLIT // 2
"""Pairs of pages of a KV split."""
LANE = lanes_at(0, L)
"""Index of a whole row of a tile."""


def fast_query_block_tokens(heads: int, kv_heads: int) -> int:
    """Most tokens of a query block of fast tokens."""
    return max(1, MOST_ROWS // (heads // kv_heads))


@record(eq=False)
class Scratch:
    """The memory of a task; the module's docstring has the shapes of tiles and scores."""

    rows: int
    """R"""
    config: Buffer
    """int32 [16]: the shapes of tiles."""
    queries: Buffer
    keys: Buffer
    values: Buffer
    scores: Buffer
    weights: Buffer
    part: Softmax
    state: Softmax
    place: Buffer
    """int32 [R]: the place of each row's token."""
    before: Buffer
    """int32 [R]: its `before_window`."""
    token: Buffer
    """int32 [R]: the token of each row. Rows behind the last token repeat it."""
    first: Buffer
    """int32 [1]: the first page of the split."""
    count: Buffer
    """int32 [1]: pages of the split that are read."""
    oldest: Buffer
    """int32 [1]: place of the first token."""
    before_oldest: Buffer
    """int32 [1]: its `before_window`."""
    newest: Buffer
    """int32 [1]: place of the last token."""
    zero: Buffer
    """int32 [1]: 0."""
    column: Buffer
    """int32 [1]: the column of the queries that the split is seen with."""


def new_scratch(shape: Shape) -> Scratch:
    """Scratch with nothing in it."""
    D, tokens = shape.head_dim, fast_query_block_tokens(shape.heads, shape.kv_heads)
    rows = -(-tokens * shape.heads_per_kv // PAIR) * PAIR

    def number(count: int = 1) -> Buffer:
        """Scratch for so many whole numbers."""
        return T.alloc_buffer((count,), "int32")

    return Scratch(
        rows=rows,
        config=number(amx.SHAPE_WORDS),
        queries=T.alloc_buffer((rows // ROWS, D // PAIR, ROWS, L), "int32"),
        keys=T.alloc_buffer((KV_SPLIT, D // PAIR, ROWS, L), "int32"),
        values=T.alloc_buffer((D // L, PAGE_PAIRS, ROWS, L), "int32"),
        scores=T.alloc_buffer((PAIR, SPLIT_KEYS), "float32"),
        weights=T.alloc_buffer((2, PAGE_PAIRS, ROWS, L), "int32"),
        part=new_softmax(PAIR, D),
        state=new_softmax(rows, D),
        place=number(rows),
        before=number(rows),
        token=number(rows),
        first=number(),
        count=number(),
        oldest=number(),
        before_oldest=number(),
        newest=number(),
        zero=number(),
        column=number(),
    )


@T.inline
def load_query(shape, given, scratch, kv_head, r):
    """Row r of the query tiles."""
    per_kv = T.meta_var(shape.heads_per_kv)
    D = T.meta_var(shape.head_dim)
    for e in T.serial(D // PAIR):
        scratch.queries[r // ROWS, e, r % ROWS, LANE] = round_pair(
            given.queries[
                scratch.token[r],
                lanes_at(scratch.column[0] + (kv_head * per_kv + r % per_kv) * D + e * PAIR, L),
            ],
            given.queries[
                scratch.token[r],
                lanes_at(scratch.column[0] + (kv_head * per_kv + r % per_kv) * D + e * PAIR + L, L),
            ],
        )


def _page_id(given: Arguments, scratch: Scratch, block: Expr, page: Expr) -> Expr:
    """The id of a page of the sequence; one behind the last is read as the last."""
    return given.page_ids[given.blocks[block, 2] + T.min(page, scratch.newest[0] // PAGE)]


def _scaled(
    shape: Shape, given: Arguments, page: Expr, kv_head: Expr, at: Expr, group: Expr
) -> Expr:
    """Elements of all keys of a page, which begin at `at` and are of that group of the head."""
    keys = T.cast(given.pages[page, kv_head, 0, at], f"float32x{L}")
    if not shape.has_scales:
        return keys
    start = scales_at(PAGE, shape.head_dim, group, 0)
    return keys * read_scales(given.pages, page, kv_head, 0, start, PAGE)


def _value(shape: Shape, given: Arguments, page: Expr, kv_head: Expr, i: Expr, d: Expr) -> Expr:
    """Elements of the value of token i of a page, from d on."""
    values = T.cast(
        given.pages[page, kv_head, 1, lanes_at(i * shape.head_dim + d, L)], f"float32x{L}"
    )
    if not shape.has_scales:
        return values
    start = scales_at(PAGE, shape.head_dim, d // GROUP, i)
    return values * splat(read_scales(given.pages, page, kv_head, 1, start, 1), L)


@T.inline
def load_keys(shape, given, scratch, block, kv_head, pair):
    """The key tiles of a pair of pages."""
    page = T.alloc_buffer((1,), "int32")
    for i in T.serial(2):
        page[0] = _page_id(given, scratch, block, scratch.first[0] + 2 * pair + i)
        for e in T.serial(shape.head_dim // PAIR):
            for d in T.unroll(ROWS):
                low = T.meta_var(lanes_at((e * PAIR + d) * PAGE, L))
                high = T.meta_var(lanes_at((e * PAIR + d + L) * PAGE, L))
                scratch.keys[2 * pair + i, e, d, LANE] = round_pair(
                    _scaled(shape, given, page[0], kv_head, low, e),
                    _scaled(shape, given, page[0], kv_head, high, e),
                )


def _kept_bits(given: Arguments, scratch: Scratch, page: Expr, i: Expr, bits: int) -> Expr:
    """`bits` where any row sees token i of a page of the sequence, else 0: what is not seen may be
    anything, and no product may meet it."""
    is_known = page * PAGE + i <= scratch.newest[0]
    seen = T.And(is_known, is_seen(page * PAGE, PAGE, scratch.before_oldest[0], given.window))
    return T.if_then_else(seen, T.int32(bits), T.int32(0))


@T.inline
def load_values(shape, given, scratch, block, kv_head, pair):
    """The value tiles of a pair of pages."""
    D = T.meta_var(shape.head_dim)
    page = T.alloc_buffer((2,), "int32")
    bits = T.alloc_buffer((1,), "int32")
    for i in T.unroll(2):
        page[i] = _page_id(given, scratch, block, scratch.first[0] + 2 * pair + i)
    for i in T.serial(PAGE):
        bits[0] = _kept_bits(given, scratch, scratch.first[0] + 2 * pair, i, 0xFFFF) | _kept_bits(
            given, scratch, scratch.first[0] + 2 * pair + 1, i, -0x10000
        )
        for d in T.unroll(D // L):
            scratch.values[d, pair, i, LANE] = splat(bits[0], L) & round_pair(
                _value(shape, given, page[0], kv_head, i, d * L),
                _value(shape, given, page[1], kv_head, i, d * L),
            )


@T.inline
def _clear_sums():
    """All sums in tile registers become 0."""
    for i in T.unroll(4):
        T.evaluate(amx.clear(amx.SUMS + i))


@T.inline
def _load_tiles(register, tiles, first, other):
    """Two tiles [first, other] and [first + 1, other] into two registers."""
    for i in T.unroll(2):
        T.evaluate(
            amx.load(register + i, T.address_of(tiles[first + i, other, 0, 0]), amx.ROW_BYTES)
        )


@T.inline
def _multiply():
    """Adds the four products of two tiles with two tiles to the sums."""
    for x in T.unroll(2):
        for w in T.unroll(2):
            T.evaluate(amx.multiply_floats(amx.SUMS + 2 * x + w, amx.X_TILES + x, amx.W_TILES + w))


@T.inline
def _store(out, column, width):
    """The sums of 32 rows and 32 columns into out, float32 [32, width]."""
    for x in T.unroll(2):
        for w in T.unroll(2):
            T.evaluate(
                amx.store(
                    *(amx.SUMS + 2 * x + w, T.address_of(out[x * ROWS, column + w * L])),
                    4 * width,
                )
            )


@T.inline
def score(shape, scratch, group):
    """Scores of the 32 rows of a group."""
    for pair in T.serial(scratch.count[0] // 2):
        _clear_sums()
        for e in T.unroll(shape.head_dim // PAIR):
            _load_tiles(amx.X_TILES, scratch.queries, 2 * group, e)
            _load_tiles(amx.W_TILES, scratch.keys, 2 * pair, e)
            _multiply()
        _store(scratch.scores, pair * PAIR, SPLIT_KEYS)


@T.inline
def sum_values(shape, scratch):
    """The values of the split, each times its weight, as sums of 32 rows."""
    for pair in T.serial(scratch.count[0] // 2):
        for r in T.serial(PAIR):
            scratch.weights[r // ROWS, pair, r % ROWS, LANE] = round_pair(
                scratch.scores[r, lanes_at(pair * PAIR, L)],
                scratch.scores[r, lanes_at(pair * PAIR + L, L)],
            )
    for d in T.unroll(shape.head_dim // PAIR):
        _clear_sums()
        for pair in T.serial(scratch.count[0] // 2):
            _load_tiles(amx.X_TILES, scratch.weights, 0, pair)
            _load_tiles(amx.W_TILES, scratch.values, 2 * d, pair)
            _multiply()
        _store(scratch.part.sums, d * PAIR, shape.head_dim)
