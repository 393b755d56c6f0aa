"""KV pages: what they look like, how new tokens get in, how a page is copied.

A layer's pages are one tensor [pages, kv_heads, 2, PAGE * head_dim]. Keys (index 0) lie
transposed, [head_dim, PAGE], so that the scores of a page's tokens fill vectors; values (1) lie
[PAGE, head_dim].
Pages start as zeros: attention may read past a sequence's end but never uses what it finds there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, lanes_at, splat

ROPE_LANES = 8
MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


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
) -> tvm.tirx.PrimFunc:
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
    half, L = head_dim // 2, ROPE_LANES
    q0, k0, v0 = offsets
    queries = heads * head_dim

    def turn(X: Any, row: Any, at: Any, rope: Any, place: Any, i: Any, first: bool) -> Any:
        """First or second half of the rotated head that starts at column `at`."""
        low, high = X[row, lanes_at(at + i, L)], X[row, lanes_at(at + half + i, L)]
        cos, sin = (rope[place, kind, lanes_at(i, L)] for kind in (0, 1))
        return low * cos - high * sin if first else high * cos + low * sin

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
        R = T.match_buffer(rope, (n, 2, half), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, PAGE * head_dim), kv_dtype)
        O = T.match_buffer(rotated, (m, (2 if sink_query else 1) * queries), "float32")

        @T.inline
        def one_query(row, place, column):
            for h in T.serial(heads):
                for i in T.serial(half // L):
                    O[row, lanes_at(column + h * head_dim + i * L, L)] = turn(
                        Q, row, q0 + h * head_dim, R, place[row], i * L, True
                    ) * splat(T.float32(LOG2E * scale), L)
                    O[row, lanes_at(column + h * head_dim + half + i * L, L)] = turn(
                        Q, row, q0 + h * head_dim, R, place[row], i * L, False
                    ) * splat(T.float32(LOG2E * scale), L)

        @T.inline
        def one_token(row):
            key = T.alloc_buffer((head_dim,), "float32")
            one_query(row, POS, 0)
            if sink_query:
                one_query(row, SINK, queries)
            for h in T.serial(kv_heads):
                for i in T.serial(half // L):
                    key[lanes_at(i * L, L)] = turn(
                        K, row, k0 + h * head_dim, R, POS[row], i * L, True
                    )
                    key[lanes_at(half + i * L, L)] = turn(
                        K, row, k0 + h * head_dim, R, POS[row], i * L, False
                    )
                for d in T.serial(head_dim):
                    P[S[row] // PAGE, h, 0, d * PAGE + S[row] % PAGE] = T.cast(key[d], kv_dtype)
                for i in T.serial(head_dim // L):
                    P[S[row] // PAGE, h, 1, lanes_at(S[row] % PAGE * head_dim + i * L, L)] = T.cast(
                        V[row, lanes_at(v0 + h * head_dim + i * L, L)], f"{kv_dtype}x{L}"
                    )

        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    one_token(row)
            else:
                for row in T.serial(m):
                    one_token(row)

    return append


@cache
def copy_pages(kv_heads: int, head_dim: int, kv_dtype: str) -> tvm.tirx.PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices; changes `pages` in place."""
    size = PAGE * head_dim

    @T.prim_func(private=True, s_tir=True)
    def copy(source: T.handle, target: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        n = T.int32()
        num_pages = T.int32()
        A = T.match_buffer(source, (n,), "int32")
        B = T.match_buffer(target, (n,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, size), kv_dtype)
        with T.sblock("root"):
            for i in T.serial(n):
                for kv in T.serial(2):
                    for h in T.serial(kv_heads):
                        for j in T.serial(size // 16):
                            P[B[i], h, kv, lanes_at(j * 16, 16)] = P[
                                A[i], h, kv, lanes_at(j * 16, 16)
                            ]

    return copy
