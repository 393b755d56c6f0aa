"""KV pages: how they look, how new tokens get into them, how a page is copied.

A layer's pages are one tensor [pages, kv_heads, 2, elements of a block]. Keys (index 0) lie
transposed, [head_dim, PAGE], so that the scores of a page's tokens fill vectors. Values (1) lie
[PAGE, head_dim]. Behind whole numbers lie their scales (`library/page_format.py`). Pages start as
zeros: attention may read past a sequence's end but never uses what it finds there.

rope_append:
    in parallel, for each token, or for some that follow each other:
        their queries:        see `queries.py`
        for each KV head:     page keys = turn(key, position), transposed;  page values = value
    Keys that fill a page are transposed together.

turn: see `rotation.py`.
"""

from __future__ import annotations

from functools import cache
from math import gcd

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.queries import Queries, put_queries
from mlc_llm.kernels.cpu.rotation import Columns, L, Turn, rest_lanes, turn_lanes, turned
from mlc_llm.kernels.cpu.transposed import SIDE, transpose
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, reduce_max, splat
from mlc_llm.kernels.heads import Heads
from mlc_llm.kernels.page_bytes import inverse, scale_bits, scales_at, two_bytes, whole
from mlc_llm.kernels.types import Buffer
from mlc_llm.library.page_format import GROUP, block_elements, scale_groups
from mlc_llm.record import record

COPY_LANES = 16
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""
TOGETHER, LEAST_TOGETHER = PAGE, 256
"""How many tokens follow each other head by head, so that what a head has of a page stays in the
first cache; and in how many, so that there is enough for many threads."""


@record(eq=False)
class Rows:
    """The arguments of `rope_append`, which describes them."""

    queries: Queries
    k: Columns
    v: Columns
    slot: Buffer
    pages: Buffer


def fills_pages(sizes: Heads) -> bool:
    """Whether the keys of a whole page go there at once, transposed in registers."""
    return sizes.kv_dtype == "float16" and sizes.head_dim % SIDE == 0


@T.inline
def _turn_key(sizes, rows, row, head, key):
    """key, float32 [head_dim]: the key that begins at that column, turned."""
    half = T.meta_var(sizes.half)
    lanes = T.meta_var(turn_lanes(sizes))
    rest = T.meta_var(rest_lanes(sizes))
    turn = T.meta_var(Turn(rows.queries.rope, rows.queries.position[row]))
    if half > 0:
        for i in T.serial(half // lanes):
            key[lanes_at(i * lanes, lanes)] = turned(
                sizes, rows.k, row, head, turn, i * lanes, True
            )
            key[lanes_at(half + i * lanes, lanes)] = turned(
                sizes, rows.k, row, head, turn, i * lanes, False
            )
    if sizes.rest > 0:
        for i in T.serial(sizes.rest // rest):
            key[lanes_at(sizes.rope_dim + i * rest, rest)] = rows.k.at(
                row, head + sizes.rope_dim + i * rest, rest
            )


@T.inline
def _store_bytes(sizes, rows, page, place, h, kind, x):
    """A key (kind 0) or a value (1), float32 [head_dim], as whole numbers and scales."""
    bits = T.alloc_buffer((1,), "int32")
    top = T.alloc_buffer((L,), "int32")
    for g in T.serial(scale_groups(sizes.head_dim)):
        vectors = T.meta_var(T.min(GROUP, sizes.head_dim - g * GROUP) // L)
        top[lanes_at(0, L)] = splat(T.int32(0), L)
        for i in T.serial(vectors):
            top[lanes_at(0, L)] = T.max(
                top[lanes_at(0, L)],
                T.reinterpret(T.abs(x[lanes_at(g * GROUP + i * L, L)]), dtype=f"int32x{L}"),
            )
        bits[0] = scale_bits(reduce_max(top, L))
        rows.pages[page, h, kind, lanes_at(scales_at(PAGE, sizes.head_dim, g, place), 2)] = (
            two_bytes(bits[0])
        )
        for i in T.serial(vectors):
            x[lanes_at(g * GROUP + i * L, L)] = x[lanes_at(g * GROUP + i * L, L)] * splat(
                inverse(bits[0]), L
            )
    if kind == 0:
        for d in T.serial(sizes.head_dim):
            rows.pages[page, h, 0, d * PAGE + place] = whole(x[d])
    else:
        for i in T.serial(sizes.head_dim // L):
            rows.pages[page, h, 1, lanes_at(place * sizes.head_dim + i * L, L)] = whole(
                x[lanes_at(i * L, L)], L
            )


@T.inline
def _store_value(sizes, rows, row, page, place, h):
    """A token's value as it is."""
    for i in T.serial(sizes.head_dim // L):
        rows.pages[page, h, 1, lanes_at(place * sizes.head_dim + i * L, L)] = T.cast(
            rows.v.at(row, rows.v.start + h * sizes.head_dim + i * L, L), f"{sizes.kv_dtype}x{L}"
        )


@T.inline
def _store_floats(sizes, rows, row, page, place, h, key):
    """A key and the value of that token as they are."""
    for d in T.serial(sizes.head_dim):
        rows.pages[page, h, 0, d * PAGE + place] = T.cast(key[d], sizes.kv_dtype)
    _store_value(sizes, rows, row, page, place, h)


@T.inline
def _store_head(sizes, rows, row, h, key):
    """A token's key and value of KV head h into its page; key: float32 [head_dim], scratch."""
    page = T.meta_var(rows.slot[row] // PAGE)
    place = T.meta_var(rows.slot[row] % PAGE)
    _turn_key(sizes, rows, row, rows.k.start + h * sizes.head_dim, key)
    if sizes.kv_dtype == "int8":
        _store_bytes(sizes, rows, page, place, h, 0, key)
        for i in T.serial(sizes.head_dim // L):
            key[lanes_at(i * L, L)] = rows.v.at(row, rows.v.start + h * sizes.head_dim + i * L, L)
        _store_bytes(sizes, rows, page, place, h, 1, key)
    else:
        _store_floats(sizes, rows, row, page, place, h, key)


@T.inline
def _store_page(sizes, rows, start, h, key):
    """Keys and values of KV head h of the tokens that fill a page; key: as of `_store_head`."""
    keys = T.alloc_buffer((PAGE, sizes.head_dim), "float16")
    page = T.meta_var(rows.slot[start] // PAGE)
    # As many lanes as they are written with: LLVM joins others wrongly.
    lanes = T.meta_var(gcd(sizes.half, sizes.rest, L))
    for i in T.serial(PAGE):
        _turn_key(sizes, rows, start + i, rows.k.start + h * sizes.head_dim, key)
        for j in T.serial(sizes.head_dim // lanes):
            keys[i, lanes_at(j * lanes, lanes)] = T.cast(
                key[lanes_at(j * lanes, lanes)], f"float16x{lanes}"
            )
        _store_value(sizes, rows, start + i, page, i, h)
    for d in T.serial(sizes.head_dim // SIDE):
        row = T.meta_var(lambda j, d=d: (page, h, 0, lanes_at((d * SIDE + j) * PAGE, PAGE)))
        transpose(keys, d * SIDE, rows.pages, row)


@T.inline
def _append_tokens(sizes, rows, start, count, sink_query):
    """The queries of some tokens into `rotated`, their keys and values into their pages."""
    key = T.alloc_buffer((sizes.head_dim,), "float32")
    for i in T.serial(count):
        put_queries(sizes, rows.queries, start + i, sink_query)
    for h in T.serial(sizes.kv_heads):
        for i in T.serial(count):
            _store_head(sizes, rows, start + i, h, key)


@T.inline
def _append_page(sizes, rows, start, count, sink_query):
    """The same, of tokens that may fill a page."""
    key = T.alloc_buffer((sizes.head_dim,), "float32")
    left = T.alloc_buffer((1,), "int32")
    left[0] = rows.slot[start] % PAGE + PAGE - count
    for i in T.serial(count):
        left[0] = left[0] | (rows.slot[start + i] - rows.slot[start] - i)
    if left[0] == 0:
        for i in T.serial(PAGE):
            put_queries(sizes, rows.queries, start + i, sink_query)
        for h in T.serial(sizes.kv_heads):
            _store_page(sizes, rows, start, h, key)
    else:
        _append_tokens(sizes, rows, start, count, sink_query)


@cache
def rope_append(
    sizes: Heads,
    widths: tuple[int, int, int],
    offsets: tuple[int, int, int],
    *,
    sink_query: bool = False,
    has_bias: bool = False,
) -> PrimFunc:
    """Rotates queries and keys (halves paired, as GPT-NeoX), stores keys and values in pages.

    q, k, v      float32 [m, widths[i]]: each starts at column offsets[i] (they may be one tensor)
    q_bias, ...  float32 [heads * head_dim] and twice [kv_heads * head_dim], added to them; there
                 are none unless `has_bias`
    rope         float32 [n, 2, rope_dim/2]: cosines, then sines, of every position; there is none
                 if nothing turns
    position     int32 [m], each below n; sink_position as well
    slot         int32 [m]: page * PAGE + place in the page
    pages        changed in place
    rotated      float32 [m, heads * head_dim]: queries, scaled as `Heads` says

    sink_query: each row of `rotated` has a second query behind the first, turned by `sink_position`
    (which is not read otherwise).
    """
    assert not (sink_query and sizes.query_scaling), "positions that turn sinks are no others"
    heads, kv_heads, head_dim = sizes.heads, sizes.kv_heads, sizes.head_dim
    block = block_elements(sizes.kv_dtype, PAGE, head_dim)
    width, kv_width = (2 if sink_query else 1) * heads * head_dim, kv_heads * head_dim

    append_some = _append_page if fills_pages(sizes) else _append_tokens

    def columns(x: Buffer, i: int, bias: Buffer) -> Columns:
        """Where queries (0), keys (1) or values (2) lie."""
        return Columns(x, offsets[i], bias if has_bias else None)

    @T.prim_func(private=True, s_tir=True)
    def append(
        q: T.handle,
        k: T.handle,
        v: T.handle,
        q_bias: T.handle,
        k_bias: T.handle,
        v_bias: T.handle,
        rope: T.handle,
        position: T.handle,
        sink_position: T.handle,
        slot: T.handle,
        pages: T.handle,
        rotated: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        num_pages = T.int32()
        Q = T.match_buffer(q, (m, widths[0]), "float32")
        K = T.match_buffer(k, (m, widths[1]), "float32")
        V = T.match_buffer(v, (m, widths[2]), "float32")
        Q_BIAS = T.match_buffer(q_bias, (heads * head_dim,), "float32")
        K_BIAS = T.match_buffer(k_bias, (kv_width,), "float32")
        V_BIAS = T.match_buffer(v_bias, (kv_width,), "float32")
        R = T.match_buffer(rope, (n, 2, sizes.half), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, block), sizes.kv_dtype)
        O = T.match_buffer(rotated, (m, width), "float32")
        with T.sblock("root"):
            rows = T.meta_var(
                Rows(
                    Queries(columns(Q, 0, Q_BIAS), R, POS, SINK, O),
                    *(columns(K, 1, K_BIAS), columns(V, 2, V_BIAS), S, P),
                )
            )
            if m >= MANY:
                each: T.let[T.int32] = T.if_then_else(m >= LEAST_TOGETHER, TOGETHER, 1)
                for i in T.parallel(T.ceildiv(m, each)):
                    align_stack()
                    append_some(sizes, rows, i * each, T.min(each, m - i * each), sink_query)
            else:
                _append_tokens(sizes, rows, 0, m, sink_query)

    biases = () if has_bias else ("Q_BIAS", "K_BIAS", "V_BIAS")
    return without(append, *biases, *(() if sizes.half else ("R",)))


@cache
def copy_pages(kv_heads: int, head_dim: int, kv_dtype: str) -> PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices; changes `pages` in place."""
    size = block_elements(kv_dtype, PAGE, head_dim)

    @T.prim_func(private=True, s_tir=True)
    def copy(source: T.handle, target: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        n = T.int32()
        num_pages = T.int32()
        FROM = T.match_buffer(source, (n,), "int32")
        TO = T.match_buffer(target, (n,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, size), kv_dtype)
        with T.sblock("root"):
            for i in T.serial(n):
                for kv in T.serial(2):
                    for h in T.serial(kv_heads):
                        for j in T.serial(size // COPY_LANES):
                            P[TO[i], h, kv, lanes_at(j * COPY_LANES, COPY_LANES)] = P[
                                FROM[i], h, kv, lanes_at(j * COPY_LANES, COPY_LANES)
                            ]

    return copy
