"""Attention of fast tokens on tile registers, and of exact tokens beside them (`attention.py`).

    in parallel, for each task (query block of fast tokens, KV head):
        query tiles = queries of up to 128 rows
        for each KV split that is seen:
            key tiles, value tiles = its pages
            for each 32 rows:
                scores = query tiles x key tiles;  mask, softmax
                part = weight tiles x value tiles;  fold
        write
    then exact attention of all other tokens

Softmax and the folding of splits are those of exact attention. All tiles are bfloat16: a 32-bit
word holds elements i (low half) and i + 16 (high half) of 32, which are elements of a head, or
tokens of two pages.

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

from dataclasses import dataclass
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_pipeline import L
from mlc_llm.kernels.cpu.attention import attend, spread, spread_count
from mlc_llm.kernels.cpu.attention_shape import (
    KV_SPLIT,
    SPLIT_KEYS,
    Arguments,
    Shape,
    is_seen,
    query_column,
    sees_split,
    split_count,
)
from mlc_llm.kernels.cpu.attention_softmax import (
    Softmax,
    clear,
    fold,
    new_softmax,
    seen_score,
    softmax,
    write,
)
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr

MOST_ROWS = 128
"""Rows of a task."""
PAIR = 2 * ROWS
"""Rows, or elements of a head, that are multiplied together."""
PARTS = 8
"""Parts of all tasks: every thread gets tasks of each, since later tokens see more."""
PAGE_PAIRS = KV_SPLIT // 2
"""Pairs of pages of a KV split."""
LANE = lanes_at(0, L)
"""Index of a whole row of a tile."""


def has_fast_attention(head_dim: int, isa: Isa) -> bool:
    """Whether fast tokens have an attention of their own."""
    return isa.fast and head_dim % PAIR == 0


def fast_query_block_tokens(heads: int, kv_heads: int) -> int:
    """Most tokens of a query block of fast tokens."""
    return max(1, MOST_ROWS // (heads // kv_heads))


@dataclass(frozen=True, eq=False)
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
    token: Buffer
    """int32 [R]: the token of each row. Rows behind the last token repeat it."""
    first: Buffer
    """int32 [1]: the first page of the split."""
    count: Buffer
    """int32 [1]: pages of the split that are read."""
    oldest: Buffer
    """int32 [1]: place of the first token."""
    newest: Buffer
    """int32 [1]: place of the last token."""
    zero: Buffer
    """int32 [1]: 0."""
    column: Buffer
    """int32 [1]: the column of the queries that the split is seen with."""


def _new_scratch(shape: Shape) -> Scratch:
    """Scratch with nothing in it."""
    D, tokens = shape.head_dim, fast_query_block_tokens(shape.heads, shape.kv_heads)
    rows = -(-tokens * shape.heads_per_kv // PAIR) * PAIR

    def number(count: int = 1) -> Buffer:
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
        token=number(rows),
        first=number(),
        count=number(),
        oldest=number(),
        newest=number(),
        zero=number(),
        column=number(),
    )


@T.inline
def _load_query(shape, given, scratch, kv_head, r):
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


@T.inline
def _load_keys(shape, given, scratch, block, kv_head, pair):
    """The key tiles of a pair of pages."""
    f32 = T.meta_var(f"float32x{L}")
    page = T.alloc_buffer((1,), "int32")
    for i in T.serial(2):
        page[0] = _page_id(given, scratch, block, scratch.first[0] + 2 * pair + i)
        for e in T.serial(shape.head_dim // PAIR):
            for d in T.unroll(ROWS):
                low = T.meta_var(lanes_at((e * PAIR + d) * PAGE, L))
                high = T.meta_var(lanes_at((e * PAIR + d + L) * PAGE, L))
                scratch.keys[2 * pair + i, e, d, LANE] = round_pair(
                    T.cast(given.pages[page[0], kv_head, 0, low], f32),
                    T.cast(given.pages[page[0], kv_head, 0, high], f32),
                )


def _kept_bits(given: Arguments, scratch: Scratch, page: Expr, i: Expr, bits: int) -> Expr:
    """`bits` where any row sees token i of a page of the sequence, else 0: what is not seen may be
    anything, and no product may meet it."""
    is_known = page * PAGE + i <= scratch.newest[0]
    seen = T.And(is_known, is_seen(page * PAGE, PAGE, scratch.oldest[0], given.window))
    return T.if_then_else(seen, T.int32(bits), T.int32(0))


@T.inline
def _load_values(shape, given, scratch, block, kv_head, pair):
    """The value tiles of a pair of pages."""
    D = T.meta_var(shape.head_dim)
    f32 = T.meta_var(f"float32x{L}")
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
                T.cast(given.pages[page[0], kv_head, 1, lanes_at(i * D + d * L, L)], f32),
                T.cast(given.pages[page[1], kv_head, 1, lanes_at(i * D + d * L, L)], f32),
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
def _score(shape, scratch, group):
    """Scores of the 32 rows of a group."""
    for pair in T.serial(scratch.count[0] // 2):
        _clear_sums()
        for e in T.unroll(shape.head_dim // PAIR):
            _load_tiles(amx.X_TILES, scratch.queries, 2 * group, e)
            _load_tiles(amx.W_TILES, scratch.keys, 2 * pair, e)
            _multiply()
        _store(scratch.scores, pair * PAIR, SPLIT_KEYS)


@T.inline
def _mask(given, scratch, group):
    """Masks scores of keys that the rows of a group do not see."""
    for r in T.serial(PAIR):
        for page in T.serial(scratch.count[0]):
            first = T.meta_var((scratch.first[0] + page) * PAGE)
            scratch.scores[r, lanes_at(page * L, L)] = seen_score(
                scratch.scores[r, lanes_at(page * L, L)],
                first,
                scratch.place[group * PAIR + r],
                given.window,
                L,
            )


@T.inline
def _sum_values(shape, scratch):
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


@T.inline
def _begin(shape, given, scratch, block, kv_head):
    """Rows that have seen no key, and their queries as tiles."""
    scratch.zero[0] = 0
    scratch.column[0] = query_column(shape, 0, given.window)
    amx.configure(scratch.config, ROWS)
    for r in T.serial(scratch.rows):
        scratch.token[r] = given.blocks[block, 0] + T.min(
            r // shape.heads_per_kv, given.blocks[block, 1] - 1
        )
        scratch.place[r] = given.place[scratch.token[r]]
        clear(shape, scratch.state, r)
        _load_query(shape, given, scratch, kv_head, r)
    scratch.oldest[0] = given.place[given.blocks[block, 0]]
    scratch.newest[0] = given.place[given.blocks[block, 0] + given.blocks[block, 1] - 1]


@T.inline
def _load_split(shape, given, scratch, block, kv_head, which):
    """A KV split's keys and values as tiles, and the queries that it is seen with."""
    scratch.first[0] = which * KV_SPLIT
    scratch.count[0] = T.min(KV_SPLIT, scratch.newest[0] // PAGE + 1 - scratch.first[0])
    if shape.sink_query:  # splits with sinks come first: this happens once
        if scratch.column[0] != query_column(shape, scratch.first[0] * PAGE, given.window):
            scratch.column[0] = query_column(shape, scratch.first[0] * PAGE, given.window)
            for r in T.serial(scratch.rows):
                _load_query(shape, given, scratch, kv_head, r)
    for pair in T.serial((scratch.count[0] + 1) // 2):
        _load_keys(shape, given, scratch, block, kv_head, pair)
        _load_values(shape, given, scratch, block, kv_head, pair)
    # A page behind the last one is masked as a whole.
    scratch.count[0] = (scratch.count[0] + 1) // 2 * 2


@T.inline
def _fold_split(shape, given, scratch, group):
    """The split's softmax for the 32 rows of a group, folded into their state."""
    _score(shape, scratch, group)
    if T.Or(
        (scratch.first[0] + scratch.count[0]) * PAGE > scratch.oldest[0] + 1,
        scratch.first[0] * PAGE <= scratch.newest[0] - given.window[0],
    ):
        _mask(given, scratch, group)
    softmax(L, scratch.scores, scratch.part, scratch.zero, scratch.count, PAIR)
    _sum_values(shape, scratch)
    for r in T.serial(PAIR):
        fold(shape, scratch.state, group * PAIR + r, scratch.part, r)


@T.inline
def _attend_block(shape, given, block, kv_head):
    """All KV splits of a query block of fast tokens, one after the other."""
    per_kv = T.meta_var(shape.heads_per_kv)
    scratch = T.meta_var(_new_scratch(shape))
    _begin(shape, given, scratch, block, kv_head)
    for which in T.serial(split_count(scratch.newest[0])):
        if sees_split(which, scratch.oldest[0], given.window):
            _load_split(shape, given, scratch, block, kv_head, which)
            for group in T.serial(T.ceildiv(given.blocks[block, 1] * per_kv, PAIR)):
                _fold_split(shape, given, scratch, group)
    for r in T.serial(given.blocks[block, 1] * per_kv):
        write(
            *(shape, scratch.state, r, given.out),
            *(scratch.token[r], kv_head * per_kv + r % per_kv),
        )
    T.evaluate(amx.release())


@T.inline
def _attend_fast(shape, given, fast_tokens):
    """Attention of the first `fast_tokens` tokens; their query blocks come first."""
    tasks = T.alloc_buffer((1,), "int32")
    tasks[0] = 0
    for block in T.serial(given.block_count):
        if given.blocks[block, 0] < fast_tokens:
            tasks[0] = tasks[0] + shape.kv_heads
    for u in T.parallel(spread_count(tasks[0], PARTS)):
        task = T.alloc_buffer((1,), "int32")
        task[0] = spread(u, tasks[0], PARTS)
        if task[0] < tasks[0]:
            _attend_block(shape, given, task[0] // shape.kv_heads, task[0] % shape.kv_heads)


@cache
def fast_attention(
    heads: int, kv_heads: int, head_dim: int, isa: Isa, kv_dtype: str, sink_query: bool = False
) -> PrimFunc:
    """Kernel arguments: those of `attention.attention`, and F int32 [1] before `out`.

    The first F[0] tokens are fast. Their query blocks come first, of up to
    `fast_query_block_tokens` tokens each.
    """
    shape = Shape(heads, kv_heads, head_dim, isa, kv_dtype, sink_query)

    @T.prim_func(private=True, s_tir=True)
    def attention_of_fast_and_exact(
        queries: T.handle,
        pages: T.handle,
        place: T.handle,
        blocks: T.handle,
        page_ids: T.handle,
        window: T.handle,
        F: T.Buffer((1,), "int32"),
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        num_pages = T.int32()
        b = T.int32()
        n = T.int32()
        Q = T.match_buffer(queries, (m, shape.query_width), "float32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, PAGE * head_dim), kv_dtype)
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (n,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        with T.sblock("root"):
            if F[0] > 0:
                _attend_fast(shape, Arguments(Q, P, AT, B, IDS, W, O, m, b, n), F[0])
            if F[0] < m:
                attend(shape, Arguments(Q, P, AT, B, IDS, W, O, m, b, n), F[0])

    return attention_of_fast_and_exact
