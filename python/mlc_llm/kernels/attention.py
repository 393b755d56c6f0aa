"""Causal attention of new tokens over paged keys and values, prefill and decode alike.

Work is cut into tiles: up to `query_tile` neighbouring tokens of one sequence, times the query
heads that share a key/value head. A tile walks the pages once with an online softmax (Milakov and
Gimelshein 2018; Dao et al. 2022), rows in registers. What a row computes does not depend on the
tile it is in: masked tokens add exactly nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import PAGE
from mlc_llm.kernels.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.vectors import SCHEDULED, exp2, fsplat, lanes_at, reduce_max, reduce_sum, splat

MASKED = -1.0e30
AHEAD = 4
"""Pages asked for ahead of their use: by then the weights of a step have driven them out of cache,
and a sequence's pages lie anywhere."""


def query_tile(heads: int, kv_heads: int, isa: Isa) -> int:
    """Tokens a tile: as many as keep all score rows in registers."""
    rows = 12 if isa.lanes == 16 else 4
    return max(1, rows // (heads // kv_heads))


@cache
def attention(
    heads: int, kv_heads: int, head_dim: int, isa: Isa, kv_dtype: str
) -> tvm.tirx.PrimFunc:
    """Kernel arguments:

    rotated     float32 [m, heads * head_dim], scaled by log2(e) / sqrt(head_dim)
    pages       kv_dtype [pages, 2, kv_heads, PAGE * head_dim], holding the new tokens already
    position    int32 [m], place of each token in its sequence
    tiles       int32 [t, 3]: first token row, number of tokens, start of the page list
    page_ids    int32 [n], the sequences' pages, one list after the other
    out         float32 [m, heads * head_dim]
    """
    L, D, share = isa.lanes, head_dim, heads // kv_heads
    QT, VP, VD = query_tile(heads, kv_heads, isa), PAGE // L, D // L
    f32 = f"float32x{L}"
    row_lane = lanes_at(0, L)
    line = LINE_BYTES // {"float16": 2, "float32": 4}[kv_dtype]

    def visible(score: Any, first: Any, position: Any) -> Any:
        token = T.ramp(first, 1, L)
        return T.Select(token <= splat(position, L), score, fsplat(MASKED, L))

    @T.prim_func(private=True, s_tir=True)
    def paged_attention(
        rotated: T.handle,
        pages: T.handle,
        position: T.handle,
        tiles: T.handle,
        page_ids: T.handle,
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        num_pages = T.int32()
        num_tiles = T.int32()
        n = T.int32()
        Q = T.match_buffer(rotated, (m, heads * D), "float32")
        P = T.match_buffer(pages, (num_pages, 2, kv_heads, PAGE * D), kv_dtype)
        POS = T.match_buffer(position, (m,), "int32")
        TILE = T.match_buffer(tiles, (num_tiles, 3), "int32")
        IDS = T.match_buffer(page_ids, (n,), "int32")
        O = T.match_buffer(out, (m, heads * D), "float32")

        @T.inline
        def run_tile(t, h, tokens, rows):
            # Row r is query head h * share + r % share of token first + min(r // share, count - 1).
            o = T.alloc_buffer((rows, D), "float32")
            s = T.alloc_buffer((rows, PAGE), "float32")
            best = T.alloc_buffer((rows,), "float32")
            weight = T.alloc_buffer((rows, L), "float32")
            token = T.alloc_buffer((tokens,), "int32")
            top = T.alloc_buffer((1,), "float32")
            decay = T.alloc_buffer((L,), "float32")
            part = T.alloc_buffer((L,), "float32")
            for i in T.unroll(tokens):
                token[i] = TILE[t, 0] + T.min(i, TILE[t, 1] - 1)
            for r in T.unroll(rows):
                best[r] = T.float32(MASKED)
                weight[r, row_lane] = fsplat(0.0, L)
                for d in T.unroll(VD):
                    o[r, lanes_at(d * L, L)] = fsplat(0.0, L)
            last: T.let[T.int32] = POS[token[tokens - 1]] // PAGE
            for p in T.serial(last + 1):
                page: T.let[T.int32] = IDS[TILE[t, 2] + p]
                _ask_for(P, IDS[TILE[t, 2] + T.min(p + AHEAD, last)], h, line, PAGE * D // line)
                for r in T.unroll(rows):
                    for v in T.unroll(VP):
                        s[r, lanes_at(v * L, L)] = fsplat(0.0, L)
                for d in T.serial(D):
                    for v in T.unroll(VP):
                        part[row_lane] = T.cast(P[page, 0, h, lanes_at(d * PAGE + v * L, L)], f32)
                        for r in T.unroll(rows):
                            s[r, lanes_at(v * L, L)] = s[r, lanes_at(v * L, L)] + part[
                                row_lane
                            ] * splat(Q[token[r // share], (h * share + r % share) * D + d], L)
                for r in T.unroll(rows):
                    for v in T.unroll(VP):
                        s[r, lanes_at(v * L, L)] = visible(
                            s[r, lanes_at(v * L, L)], p * PAGE + v * L, POS[token[r // share]]
                        )
                    if VP == 2:
                        part[row_lane] = T.max(s[r, row_lane], s[r, lanes_at(L, L)])
                    else:
                        part[row_lane] = s[r, row_lane]
                    top[0] = T.max(best[r], reduce_max(part, L))
                    decay[row_lane] = exp2(splat(best[r] - top[0], L), L)
                    best[r] = top[0]
                    weight[r, row_lane] = weight[r, row_lane] * decay[row_lane]
                    for v in T.unroll(VP):
                        s[r, lanes_at(v * L, L)] = exp2(
                            s[r, lanes_at(v * L, L)] - splat(top[0], L), L
                        )
                        # A masked score must weigh exactly nothing, not 2^-126.
                        s[r, lanes_at(v * L, L)] = T.Select(
                            T.ramp(p * PAGE + v * L, 1, L) <= splat(POS[token[r // share]], L),
                            s[r, lanes_at(v * L, L)],
                            fsplat(0.0, L),
                        )
                        weight[r, row_lane] = weight[r, row_lane] + s[r, lanes_at(v * L, L)]
                    for d in T.unroll(VD):
                        o[r, lanes_at(d * L, L)] = o[r, lanes_at(d * L, L)] * decay[row_lane]
                for d in T.unroll(VD):
                    # Places past the newest token may hold anything: they are never multiplied.
                    for i in T.serial(T.min(PAGE, POS[token[tokens - 1]] + 1 - p * PAGE)):
                        part[row_lane] = T.cast(P[page, 1, h, lanes_at(i * D + d * L, L)], f32)
                        for r in T.unroll(rows):
                            o[r, lanes_at(d * L, L)] = (
                                o[r, lanes_at(d * L, L)] + splat(s[r, i], L) * part[row_lane]
                            )
            for r in T.unroll(rows):
                if r // share < TILE[t, 1]:
                    part[row_lane] = weight[r, row_lane]
                    top[0] = T.float32(1) / reduce_sum(part, L)
                    for d in T.unroll(VD):
                        O[token[r // share], lanes_at((h * share + r % share) * D + d * L, L)] = o[
                            r, lanes_at(d * L, L)
                        ] * splat(top[0], L)

        with T.sblock("root"):
            for u in T.parallel(num_tiles * kv_heads):
                if TILE[u // kv_heads, 1] == 1:
                    run_tile(u // kv_heads, u % kv_heads, 1, share)
                else:
                    run_tile(u // kv_heads, u % kv_heads, QT, QT * share)

    return paged_attention


@T.inline
def _ask_for(P, page, h, line, lines):
    """Prefetches the keys and values of a head in a page; `line` elements are a cache line."""
    for kv in T.unroll(2):
        for i in T.serial(lines):
            T.evaluate(prefetch(P, page, kv, h, i * line))
