"""KV pages: how they look, how new tokens get into them, how a page is copied.

A layer's pages are one tensor [pages, kv_heads, 2, PAGE * head_dim]. Keys (index 0) lie
transposed, [head_dim, PAGE], so that the scores of a page's tokens fill vectors. Values (1) lie
[PAGE, head_dim]. Pages start as zeros: attention may read past a sequence's end but never uses what
it finds there.

rope_append:
    in parallel, for each token:
        for each query head:  rotated = turn(query, position) * scale
        with sink_query:      the same once more, turned by sink_position
        for each KV head:     page keys = turn(key, position), transposed;  page values = value

turn: with cosines and sines of a position, elements i and i + head_dim/2 of a head are a pair:
    low, high = low * cos - high * sin, high * cos + low * sin
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

L = 8
COPY_LANES = 16
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@dataclass(frozen=True)
class Heads:
    """Sizes of `rope_append`, whose arguments they are."""

    heads: int
    kv_heads: int
    head_dim: int
    offsets: tuple[int, int, int]
    kv_dtype: str
    scale: float

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.head_dim // 2


@dataclass(frozen=True, eq=False)
class Rows:
    """The buffers of `rope_append`, which describes them."""

    q: Buffer
    k: Buffer
    v: Buffer
    rope: Buffer
    position: Buffer
    sink_position: Buffer
    slot: Buffer
    pages: Buffer
    rotated: Buffer


def _turned(
    x: Buffer, row: Expr, column: Index, rope: Buffer, position: Expr, i: Expr, is_low: bool
) -> Expr:
    """Elements i on of the low or high half of the rotated head that starts at a column of x."""
    half = int(rope.shape[2])
    low, high = x[row, lanes_at(column + i, L)], x[row, lanes_at(column + half + i, L)]
    cos, sin = (rope[position, kind, lanes_at(i, L)] for kind in (0, 1))
    return low * cos - high * sin if is_low else high * cos + low * sin


@T.inline
def _rotate_queries(sizes, rows, row, position, column):
    """All queries of a token, turned and scaled, from that column of `rotated` on."""
    half = T.meta_var(sizes.half)
    scale = T.meta_var(splat(T.float32(LOG2E * sizes.scale), L))
    for h in T.serial(sizes.heads):
        head = T.meta_var(sizes.offsets[0] + h * sizes.head_dim)
        out = T.meta_var(column + h * sizes.head_dim)
        for i in T.serial(half // L):
            rows.rotated[row, lanes_at(out + i * L, L)] = (
                _turned(rows.q, row, head, rows.rope, position[row], i * L, True) * scale
            )
            rows.rotated[row, lanes_at(out + half + i * L, L)] = (
                _turned(rows.q, row, head, rows.rope, position[row], i * L, False) * scale
            )


@T.inline
def _store_head(sizes, rows, row, h, key):
    """A token's key and value of KV head h into its page; key: float32 [head_dim], scratch."""
    half = T.meta_var(sizes.half)
    head = T.meta_var(sizes.offsets[1] + h * sizes.head_dim)
    page = T.meta_var(rows.slot[row] // PAGE)
    place = T.meta_var(rows.slot[row] % PAGE)
    for i in T.serial(half // L):
        key[lanes_at(i * L, L)] = _turned(
            rows.k, row, head, rows.rope, rows.position[row], i * L, True
        )
        key[lanes_at(half + i * L, L)] = _turned(
            rows.k, row, head, rows.rope, rows.position[row], i * L, False
        )
    for d in T.serial(sizes.head_dim):
        rows.pages[page, h, 0, d * PAGE + place] = T.cast(key[d], sizes.kv_dtype)
    for i in T.serial(sizes.head_dim // L):
        rows.pages[page, h, 1, lanes_at(place * sizes.head_dim + i * L, L)] = T.cast(
            rows.v[row, lanes_at(sizes.offsets[2] + h * sizes.head_dim + i * L, L)],
            f"{sizes.kv_dtype}x{L}",
        )


@T.inline
def _append_token(sizes, rows, row, sink_query):
    """A token's queries into `rotated`, its keys and values into its page."""
    key = T.alloc_buffer((sizes.head_dim,), "float32")
    _rotate_queries(sizes, rows, row, rows.position, 0)
    if sink_query:
        _rotate_queries(sizes, rows, row, rows.sink_position, sizes.heads * sizes.head_dim)
    for h in T.serial(sizes.kv_heads):
        _store_head(sizes, rows, row, h, key)


@cache
def rope_append(
    heads: int,
    kv_heads: int,
    head_dim: int,
    widths: tuple[int, int, int],
    offsets: tuple[int, int, int],
    kv_dtype: str,
    scale: float,
    sink_query: bool = False,
) -> PrimFunc:
    """Rotates queries and keys (halves paired, as GPT-NeoX), stores keys and values in pages.

    q, k, v      float32 [m, widths[i]]: each starts at column offsets[i] (they may be one tensor)
    rope         float32 [n, 2, head_dim/2]: cosines, then sines, of every position
    position     int32 [m], each below n; sink_position as well
    slot         int32 [m]: page * PAGE + place in the page
    pages        changed in place
    rotated      float32 [m, heads * head_dim]: queries, scaled by log2(e) * scale

    sink_query: each row of `rotated` has a second query behind the first, turned by `sink_position`
    (which is not read otherwise).
    """
    sizes = Heads(heads, kv_heads, head_dim, offsets, kv_dtype, scale)
    width = (2 if sink_query else 1) * heads * head_dim

    @T.prim_func(private=True, s_tir=True)
    def append(
        q: T.handle,
        k: T.handle,
        v: T.handle,
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
        R = T.match_buffer(rope, (n, 2, head_dim // 2), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, PAGE * head_dim), kv_dtype)
        O = T.match_buffer(rotated, (m, width), "float32")
        with T.sblock("root"):
            rows = T.meta_var(Rows(Q, K, V, R, POS, SINK, S, P, O))
            if m >= MANY:
                for row in T.parallel(m):
                    _append_token(sizes, rows, row, sink_query)
            else:
                for row in T.serial(m):
                    _append_token(sizes, rows, row, sink_query)

    return append


@cache
def copy_pages(kv_heads: int, head_dim: int, kv_dtype: str) -> PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices; changes `pages` in place."""
    size = PAGE * head_dim

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
