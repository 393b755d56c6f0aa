"""Vectors of tokens in pages, one number at a time: slow and obvious.

A page of kv_heads, 2 and PAGE * head_dim numbers has the vectors of PAGE tokens, one behind the
other, each in a part of 2 * kv_heads * head_dim numbers. A longer vector has pages in several
tensors; `start` is its first number in this one.

keep:   for each token i: page[slot[i]] = x[i, start:...]
kept:   for each token i: y[i, start:...] = page[slot[i]], 0 if there is no slot
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.reference import PAGE, SCHEDULED


@cache
def keep(kv_heads: int, head_dim: int, columns: int, start: int, count: int) -> PrimFunc:
    """Kernel arguments:

    x      float32 [m, columns], of which `count` from `start` on are stored
    slot   int32 [m]: page * PAGE + place in the page
    pages  float32 [pages, kv_heads, 2, PAGE * head_dim]
    """
    size, room = PAGE * head_dim, 2 * kv_heads * head_dim

    @T.prim_func(private=True, s_tir=True)
    def keep_vectors(x: T.handle, slot: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, columns), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (n, kv_heads, 2, size), "float32")
        with T.sblock("root"):
            for i, j in T.grid(m, count):
                at = T.meta_var(S[i] % PAGE * room + j)
                P[S[i] // PAGE, at // (2 * size), at // size % 2, at % size] = X[i, start + j]

    return keep_vectors


@cache
def kept(kv_heads: int, head_dim: int, columns: int, start: int, count: int) -> PrimFunc:
    """The other way: arguments pages, slot, and y float32 [m, columns]."""
    size, room = PAGE * head_dim, 2 * kv_heads * head_dim

    @T.prim_func(private=True, s_tir=True)
    def kept_vectors(pages: T.handle, slot: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        P = T.match_buffer(pages, (n, kv_heads, 2, size), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        Y = T.match_buffer(y, (m, columns), "float32")
        with T.sblock("root"):
            for i, j in T.grid(m, count):
                if S[i] < 0:
                    Y[i, start + j] = T.float32(0)
                else:
                    at = T.meta_var(S[i] % PAGE * room + j)
                    Y[i, start + j] = P[S[i] // PAGE, at // (2 * size), at // size % 2, at % size]

    return kept_vectors
