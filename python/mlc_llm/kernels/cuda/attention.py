"""Causal attention of new tokens over paged keys and values: the plain form, without tensor cores.

    a block for each query block, query head and, in steps of up to FEW tokens, share; for each of
    its tokens and shares:
        for each KV split of the share that is seen, a key a thread:
            scores = q . keys;  best = max(scores);  weights = 2^(scores - best)
            part = weights . values, a thread having some elements of it
            fold the part into what the splits before it gave
    out = what all shares gave, folded in order / the sum of its weights    (`join` in small steps)

A KV split has 128 places from a multiple of 128 on, and split i belongs to share i % SHARES. So a
row's bits depend on nothing but its own place. Queries have the factor log2(e) (`Heads.scale`), so
powers are those of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_max, block_sum
from mlc_llm.kernels.types import Buffer, Expr

SPLIT = 128
"""Places of a KV split, and threads of a block."""
SHARES = 8
"""Blocks that a token and head have in a small step."""
FEW = 64
"""Tokens of a small step. There are blocks enough in a larger one."""
STATE = 2
"""Numbers of a share beside its elements: the largest score, and the sum of the weights."""
_FMA = "fma.rn.f32"
HALVES = 8
"""Elements of a key that a thread reads at once."""
LOG2E = 1.4426950408889634
_REGISTERS = {"tirx.launch_bounds_min_blocks_per_sm": 5}
"""So many blocks of a multiprocessor leave a thread 96 registers. By itself the compiler takes 32,
and then keeps numbers in memory."""
LOWEST = -3.4e38
"""A score that takes no part in a softmax."""


@dataclass(frozen=True, eq=False)
class Tables:
    """What a token reads, and the KV head; `attention` describes the buffers."""

    pages: Buffer
    page_ids: Buffer
    first_page: Expr
    window: Buffer
    place: Expr
    kv_head: Expr

    def sees(self, t: Expr) -> Expr:
        """Whether the token sees place t."""
        near = T.Or(t < self.window[1], t > self.place - self.window[0])
        return T.And(t <= self.place, near)

    def sees_split(self, first: Expr) -> Expr:
        """Whether it sees any of the places from `first` on; `first` is not behind its own."""
        near = first + (SPLIT - 1) > self.place - self.window[0]
        return T.Or(first < self.window[1], near)

    def page(self, t: Expr) -> Expr:
        """The page of a place."""
        return self.page_ids[self.first_page + t // PAGE]


@cache
def attention(
    heads: int, kv_heads: int, head_dim: int, cap: float | None = None, has_sinks: bool = False
) -> PrimFunc:
    """softmax(q k^T) v over what each token sees:

    q             float32 [m, heads * head_dim], as `rope_append` makes them
    pages         float16 [pages, kv_heads, 2, PAGE * head_dim] (`kv_pages.py`)
    place, query_blocks, page_ids, window   as in `library/signatures.py`
    sinks         float32 [heads]: of each head a score more, without a value; there are none unless
                  `has_sinks`
    shares        float32 [FEW at most, heads, SHARES, STATE + head_dim]: what `join` reads
    out           float32 [m, heads * head_dim], which only steps of more than FEW tokens write

    cap: a score s becomes cap * tanh(s / cap). head_dim: a multiple of 8.
    """
    assert head_dim % HALVES == 0
    rows = _Rows(head_dim, cap, has_sinks)

    @T.prim_func(private=True)
    def paged_attention(
        q: T.handle,
        pages: T.handle,
        place: T.handle,
        query_blocks: T.handle,
        page_ids: T.handle,
        window: T.handle,
        sinks: T.handle,
        shares: T.handle,
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        few = T.int32()
        b = T.int32()
        n = T.int32()
        ids = T.int32()
        Q = T.match_buffer(q, (m, heads * head_dim), "float32")
        P = T.match_buffer(pages, (n, kv_heads, 2, PAGE * head_dim), "float16")
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(query_blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (ids,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        PART = T.match_buffer(shares, (few, heads, SHARES, STATE + head_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        T.attr(_REGISTERS)
        block, h, own = T.cta_id([b, heads, T.Select(m <= FEW, SHARES, 1)])
        thread = T.thread_id([SPLIT])
        query = T.alloc_buffer((head_dim,), "float32", scope="shared")
        weights = T.alloc_buffer((SPLIT,), "float32", scope="shared")
        scratch = T.alloc_buffer((SPLIT // WARP,), "float32", scope="shared")
        state = T.alloc_buffer((STATE,), "float32", scope="local")
        sums = T.alloc_buffer((rows.turns,), "float32", scope="local")
        whole = T.alloc_buffer((STATE,), "float32", scope="local")
        whole_sums = T.alloc_buffer((rows.turns,), "float32", scope="local")
        for r in T.serial(B[block, 1]):
            row: T.let[T.int32] = B[block, 0] + r
            last: T.let[T.int32] = AT[row]
            tables = T.meta_var(Tables(P, IDS, B[block, 2], W, last, h // (heads // kv_heads)))
            rows.read_query(Q, row, h, thread, query)
            if m <= FEW:
                rows.attend_share(tables, own, thread, query, weights, scratch, state, sums)
                rows.keep(PART, row, h, own, thread, state, sums)
            else:
                rows.begin(SINKS, h, whole, whole_sums)
                for share in T.serial(T.min(last // SPLIT + 1, SHARES)):
                    rows.attend_share(tables, share, thread, query, weights, scratch, state, sums)
                    rows.fold(whole, whole_sums, state, sums)
                rows.end(O, row, h, thread, whole, whole_sums)

    return without(paged_attention, *(() if has_sinks else ("SINKS",)))


@cache
def join(heads: int, head_dim: int, has_sinks: bool = False) -> PrimFunc:
    """Kernel of (place, sinks, shares, out): what `attention` leaves to do in small steps."""
    rows = _Rows(head_dim, None, has_sinks)

    @T.prim_func(private=True)
    def join_shares(place: T.handle, sinks: T.handle, shares: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        few = T.int32()
        AT = T.match_buffer(place, (m,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        PART = T.match_buffer(shares, (few, heads, SHARES, STATE + head_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        row, h = T.cta_id([few, heads])
        thread = T.thread_id([SPLIT])
        state = T.alloc_buffer((STATE,), "float32", scope="local")
        sums = T.alloc_buffer((rows.turns,), "float32", scope="local")
        whole = T.alloc_buffer((STATE,), "float32", scope="local")
        whole_sums = T.alloc_buffer((rows.turns,), "float32", scope="local")
        if m <= FEW:
            rows.begin(SINKS, h, whole, whole_sums)
            for share in T.serial(T.min(AT[row] // SPLIT + 1, SHARES)):
                for i in T.unroll(STATE):
                    state[i] = PART[row, h, share, i]
                for i in T.unroll(rows.turns):
                    sums[i] = T.float32(0)
                    if i * SPLIT + thread < head_dim:
                        sums[i] = PART[row, h, share, STATE + i * SPLIT + thread]
                rows.fold(whole, whole_sums, state, sums)
            rows.end(O, row, h, thread, whole, whole_sums)

    return without(join_shares, *(() if has_sinks else ("SINKS",)))


class _Rows:
    """Statements of `attention`. state: the largest score so far, and the sum of the weights beside
    it. sums: the elements of the result that a thread has, `SPLIT` apart."""

    def __init__(self, head_dim: int, cap: float | None, has_sinks: bool) -> None:
        self.head_dim, self.cap, self.has_sinks = head_dim, cap, has_sinks
        self.turns = -(-head_dim // SPLIT)

    @T.inline
    def begin(self, SINKS, h, state, sums):
        """Nothing is seen yet but a sink."""
        state[0] = T.float32(LOWEST)
        state[1] = T.float32(0)
        if self.has_sinks:
            state[0] = SINKS[h] * T.float32(LOG2E)
            state[1] = T.float32(1)
        for i in T.unroll(self.turns):
            sums[i] = T.float32(0)

    @T.inline
    def attend_share(self, tables, share, thread, query, weights, scratch, state, sums):
        """state, sums: what the splits of a share give."""
        state[0] = T.float32(LOWEST)
        state[1] = T.float32(0)
        for i in T.unroll(self.turns):
            sums[i] = T.float32(0)
        for turn in T.serial(T.ceildiv(tables.place // SPLIT + 1 - share, SHARES)):
            first: T.let[T.int32] = (turn * SHARES + share) * SPLIT
            if tables.sees_split(first):
                self.attend(tables, first, thread, query, weights, scratch, state, sums)

    @T.inline
    def keep(self, PART, row, h, share, thread, state, sums):
        """Writes a share for `join`."""
        if thread < STATE:
            PART[row, h, share, thread] = T.if_then_else(thread == 0, state[0], state[1])
        for i in T.unroll(self.turns):
            if i * SPLIT + thread < self.head_dim:
                PART[row, h, share, STATE + i * SPLIT + thread] = sums[i]

    @T.inline
    def fold(self, whole, whole_sums, state, sums):
        """Adds a share. The instruction is named, so that both kernels round alike."""
        factors = T.alloc_buffer((2,), "float32", scope="local")
        best = T.alloc_buffer((1,), "float32", scope="local")
        best[0] = T.max(whole[0], state[0])
        factors[0] = T.exp2(whole[0] - best[0])
        factors[1] = T.exp2(state[0] - best[0])
        whole[0] = best[0]
        T.ptx[_FMA](whole[1], whole[1], factors[0], state[1] * factors[1])
        for i in T.unroll(self.turns):
            T.ptx[_FMA](whole_sums[i], whole_sums[i], factors[0], sums[i] * factors[1])

    @T.inline
    def read_query(self, Q, row, h, thread, query):
        """Puts the query where all threads read it."""
        for i in T.unroll(self.turns):
            if i * SPLIT + thread < self.head_dim:
                query[i * SPLIT + thread] = Q[row, h * self.head_dim + i * SPLIT + thread]
        T.cuda.cta_sync()

    @T.inline
    def attend(self, tables, first, thread, query, weights, scratch, state, sums):
        """Folds a KV split into `state` and `sums`.

        Between the last reading of the query or of weights and the next writing, all threads meet
        in `block_sum` or `block_max`.
        """
        score = T.alloc_buffer((1,), "float32", scope="local")
        best = T.alloc_buffer((1,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        score[0] = T.float32(LOWEST)
        if tables.sees(first + thread):
            self.find_score(tables, first + thread, query, score)
        best[0] = score[0]
        block_max(best, thread, SPLIT // WARP, scratch)
        best[0] = T.max(best[0], state[0])
        total[0] = T.float32(0)
        if tables.sees(first + thread):
            total[0] = T.exp2(score[0] - best[0])
        weights[thread] = total[0]
        block_sum(total, thread, SPLIT // WARP, scratch)
        score[0] = T.exp2(state[0] - best[0])
        state[0] = best[0]
        state[1] = state[1] * score[0] + total[0]
        for i in T.unroll(self.turns):
            sums[i] = sums[i] * score[0]
        for j in T.serial(T.min(SPLIT, tables.place + 1 - first)):
            self.add_value(tables, first + j, thread, weights[j], sums)

    @T.inline
    def find_score(self, tables, t, query, score):
        """The score of place t."""
        key = T.alloc_buffer((HALVES,), "float16", scope="local")
        page: T.let[T.int32] = tables.page(t)
        score[0] = T.float32(0)
        for i in T.serial(self.head_dim // HALVES):
            for j in T.vectorized(HALVES):
                key[j] = tables.pages[
                    page, tables.kv_head, 0, t % PAGE * self.head_dim + i * HALVES + j
                ]
            for j in T.unroll(HALVES):
                score[0] = score[0] + query[i * HALVES + j] * T.cast(key[j], "float32")
        if self.cap is not None:
            score[0] = T.tanh(score[0] * T.float32(1 / (LOG2E * self.cap))) * T.float32(
                LOG2E * self.cap
            )

    @T.inline
    def add_value(self, tables, t, thread, weight, sums):
        """The value at place t, weighted."""
        for i in T.unroll(self.turns):
            if i * SPLIT + thread < self.head_dim:
                sums[i] = sums[i] + weight * T.cast(
                    tables.pages[
                        tables.page(t),
                        tables.kv_head,
                        1,
                        t % PAGE * self.head_dim + i * SPLIT + thread,
                    ],
                    "float32",
                )

    @T.inline
    def end(self, O, row, h, thread, state, sums):
        """Writes a row."""
        for i in T.unroll(self.turns):
            if i * SPLIT + thread < self.head_dim:
                O[row, h * self.head_dim + i * SPLIT + thread] = sums[i] / state[1]
