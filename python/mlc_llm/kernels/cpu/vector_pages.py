"""Vectors of tokens in pages that look like those of keys and values (`kv_pages.py`).

A page of kv_heads, 2 and PAGE * head_dim numbers has the vectors of PAGE tokens, one behind the
other, each in a part of 2 * kv_heads * head_dim numbers. A longer vector has pages in several
tensors; `start` is its first number in this one.

keep:   for each token i: page[slot[i]] = x[i, start:...], within what float16 can be: some models
        have first tokens beyond it, and an infinite number would spoil all tokens behind them
kept:   for each token i: y[i, start:...] = page[slot[i]], 0 if there is no slot
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at

L = 16
MOST = 65504.0
"""The greatest float16."""


@cache
def keep(
    kv_heads: int, head_dim: int, kv_dtype: str, columns: int, start: int, count: int
) -> PrimFunc:
    """Kernel arguments; head_dim, start and count are multiples of L:

    x      float32 [m, columns], of which `count` from `start` on are stored
    slot   int32 [m]: page * PAGE + place in the page
    pages  kv_dtype [pages, kv_heads, 2, PAGE * head_dim]
    """
    size, room = PAGE * head_dim, 2 * kv_heads * head_dim

    @T.prim_func(private=True, s_tir=True)
    def keep_vectors(x: T.handle, slot: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, columns), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (n, kv_heads, 2, size), kv_dtype)
        with T.sblock("root"):
            for i in T.serial(m):
                for j in T.serial(count // L):
                    at = T.meta_var(S[i] % PAGE * room + j * L)
                    limited: T.let = T.min(X[i, lanes_at(start + j * L, L)], fsplat(MOST, L))
                    P[S[i] // PAGE, at // (2 * size), at // size % 2, lanes_at(at % size, L)] = (
                        T.cast(T.max(limited, fsplat(-MOST, L)), f"{kv_dtype}x{L}")
                    )

    return keep_vectors


@cache
def kept(
    kv_heads: int, head_dim: int, kv_dtype: str, columns: int, start: int, count: int
) -> PrimFunc:
    """The other way: arguments pages, slot, and y float32 [m, columns]."""
    size, room = PAGE * head_dim, 2 * kv_heads * head_dim

    @T.prim_func(private=True, s_tir=True)
    def kept_vectors(pages: T.handle, slot: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        P = T.match_buffer(pages, (n, kv_heads, 2, size), kv_dtype)
        S = T.match_buffer(slot, (m,), "int32")
        Y = T.match_buffer(y, (m, columns), "float32")
        with T.sblock("root"):
            for i in T.serial(m):
                for j in T.serial(count // L):
                    if S[i] < 0:
                        Y[i, lanes_at(start + j * L, L)] = fsplat(0.0, L)
                    else:
                        at = T.meta_var(S[i] % PAGE * room + j * L)
                        Y[i, lanes_at(start + j * L, L)] = T.cast(
                            P[
                                S[i] // PAGE,
                                at // (2 * size),
                                at // size % 2,
                                lanes_at(at % size, L),
                            ],
                            f"float32x{L}",
                        )

    return kept_vectors
