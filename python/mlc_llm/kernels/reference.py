"""The operations that Relax has no word for, one number at a time.

They change memory in place, or attend over pages. Slow and obvious; every other backend is held
against them. A layer's pages are one tensor float32 [pages, kv_heads, 2, PAGE * head_dim]: keys (0)
and values (1) of a page lie [PAGE, head_dim].
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

PAGE = 16
"""Tokens a page."""
LOWEST = -3.4e38


def store(kv_heads: int, head_dim: int) -> tvm.tirx.PrimFunc:
    """pages[slot[i]] = key[i], value[i]: keys and values float32 [m, kv_heads, head_dim], slot
    int32 [m] (page * PAGE + place in the page); pages are changed in place."""

    @T.prim_func(private=True, s_tir=True)
    def store_kv(key: T.handle, value: T.handle, slot: T.handle, pages: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        n = T.int32()
        K = T.match_buffer(key, (m, kv_heads, head_dim), "float32")
        V = T.match_buffer(value, (m, kv_heads, head_dim), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (n, kv_heads, 2, PAGE * head_dim), "float32")
        with T.sblock("root"):
            for i, h, d in T.grid(m, kv_heads, head_dim):
                P[S[i] // PAGE, h, 0, S[i] % PAGE * head_dim + d] = K[i, h, d]
                P[S[i] // PAGE, h, 1, S[i] % PAGE * head_dim + d] = V[i, h, d]

    return store_kv


def attention(heads: int, kv_heads: int, head_dim: int, scale: float) -> tvm.tirx.PrimFunc:
    """softmax(q k^T * scale) v over what each token sees. Arguments as in
    `library/signatures.py`, a query block for each token; scores are kept in `scores`:

    q         float32 [m, heads, head_dim], rotated; of_sinks: the query with which the first
              window[1] tokens are seen
    scores    float32 [positions]: room for one row of scores
    out       float32 [m, heads, head_dim]
    """
    share = heads // kv_heads

    @T.prim_func(private=True, s_tir=True)
    def paged_attention(
        q: T.handle,
        of_sinks: T.handle,
        pages: T.handle,
        place: T.handle,
        query_blocks: T.handle,
        page_ids: T.handle,
        window: T.handle,
        scores: T.handle,
        out: T.handle,
    ):
        T.func_attr({"tirx.is_scheduled": True})
        m = T.int32()
        b = T.int32()
        n = T.int32()
        ids = T.int32()
        positions = T.int32()
        Q = T.match_buffer(q, (m, heads, head_dim), "float32")
        F = T.match_buffer(of_sinks, (m, heads, head_dim), "float32")
        P = T.match_buffer(pages, (n, kv_heads, 2, PAGE * head_dim), "float32")
        POS = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(query_blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (ids,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        S = T.match_buffer(scores, (positions,), "float32")
        O = T.match_buffer(out, (m, heads, head_dim), "float32")
        with T.sblock("root"):
            best = T.alloc_buffer((1,), "float32")
            total = T.alloc_buffer((1,), "float32")
            for block, h in T.grid(b, heads):
                row: T.let[T.int32] = B[block, 0]
                best[0] = T.float32(LOWEST)
                for t in T.serial(POS[row] + 1):
                    S[t] = T.float32(LOWEST)
                    if T.Or(t < W[1], t > POS[row] - W[0]):
                        S[t] = T.float32(0)
                        for d in T.serial(head_dim):
                            S[t] = (
                                S[t]
                                + T.if_then_else(t < W[1], F[row, h, d], Q[row, h, d])
                                * P[
                                    IDS[B[block, 2] + t // PAGE],
                                    h // share,
                                    0,
                                    t % PAGE * head_dim + d,
                                ]
                            )
                        S[t] = S[t] * T.float32(scale)
                        best[0] = T.max(best[0], S[t])
                total[0] = T.float32(0)
                for d in T.serial(head_dim):
                    O[row, h, d] = T.float32(0)
                for t in T.serial(POS[row] + 1):
                    if T.Or(t < W[1], t > POS[row] - W[0]):
                        S[t] = T.exp(S[t] - best[0])
                        total[0] = total[0] + S[t]
                        for d in T.serial(head_dim):
                            O[row, h, d] = (
                                O[row, h, d]
                                + S[t]
                                * P[
                                    IDS[B[block, 2] + t // PAGE],
                                    h // share,
                                    1,
                                    t % PAGE * head_dim + d,
                                ]
                            )
                for d in T.serial(head_dim):
                    O[row, h, d] = O[row, h, d] / total[0]

    return paged_attention


def copy_pages(kv_heads: int, head_dim: int) -> tvm.tirx.PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices, in place."""
    size = PAGE * head_dim

    @T.prim_func(private=True, s_tir=True)
    def copy(source: T.handle, target: T.handle, pages: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        n = T.int32()
        p = T.int32()
        A = T.match_buffer(source, (n,), "int32")
        B = T.match_buffer(target, (n,), "int32")
        P = T.match_buffer(pages, (p, kv_heads, 2, size), "float32")
        with T.sblock("root"):
            for i, h, kv, j in T.grid(n, kv_heads, 2, size):
                P[B[i], h, kv, j] = P[A[i], h, kv, j]

    return copy


def edit_logits(vocab: int, width: int) -> tvm.tirx.PrimFunc:
    """Edits one after the other, then masks (see `library/signatures.py`); logits float32
    [s, width], changed in place."""
    words = -(-vocab // 32)

    @T.prim_func(private=True, s_tir=True)
    def edit(
        place: T.handle, number: T.handle, masked: T.handle, allowed: T.handle, logits: T.handle
    ):
        T.func_attr({"tirx.is_scheduled": True})
        e = T.int32()
        r = T.int32()
        s = T.int32()
        P = T.match_buffer(place, (e, 2), "int32")
        N = T.match_buffer(number, (e, 3), "float32")
        M = T.match_buffer(masked, (r,), "int32")
        A = T.match_buffer(allowed, (r, words), "int32")
        X = T.match_buffer(logits, (s, width), "float32")
        with T.sblock("root"):
            for i in T.serial(e):
                X[P[i, 0], P[i, 1]] = X[P[i, 0], P[i, 1]] + N[i, 0]
                if X[P[i, 0], P[i, 1]] < T.float32(0):
                    X[P[i, 0], P[i, 1]] = X[P[i, 0], P[i, 1]] * N[i, 1]
                else:
                    X[P[i, 0], P[i, 1]] = X[P[i, 0], P[i, 1]] / N[i, 1]
                X[P[i, 0], P[i, 1]] = X[P[i, 0], P[i, 1]] - N[i, 2]
            for i, t in T.grid(r, vocab):
                if T.bitwise_and(T.shift_right(A[i, t // 32], t % 32), 1) == 0:
                    X[M[i], t] = X[M[i], t] - T.infinity("float32")

    return edit
