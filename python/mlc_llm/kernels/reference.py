"""The operations that Relax has no word for, one number at a time.

They change memory in place, or attend over pages. They are slow and obvious, and every other
backend is tested against them.

attention, for each token, for each query head:
    scores[t] = sum(q * key[t]) * scale, for each place t that the token sees; capped if asked for
    best = max(scores, sink);  scores[t] = exp(scores[t] - best)
    total = sum(scores) + exp(sink - best)
    out = sum(scores[t] * value[t]) / total

pages     [pages, kv_heads, 2, elements of a block]: keys (0) and values (1) of a page, each
          float32 [PAGE, head_dim], or int8 with scales behind them (`library/page_format.py`)
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.page_bytes import (
    inverse,
    read_scales,
    scale_bits,
    scales_at,
    two_bytes,
    whole,
)
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import GROUP, block_elements, scale_groups
from mlc_llm.record import record

PAGE = 16
"""Tokens of a page."""
LOWEST = -3.4e38
"""A score that takes no part in a softmax."""
SCHEDULED = {"tirx.is_scheduled": True}
"""Attribute of every kernel: the loops are final."""


@T.inline
def _store_bytes(pages, slot, h, kind, x, row):
    """Key (kind 0) or value (1) of KV head h of a token, from row `row` of x, as whole numbers and
    scales."""
    D = T.meta_var(int(x.shape[2]))
    largest = T.alloc_buffer((1,), "int32")
    for g in T.serial(scale_groups(D)):
        largest[0] = 0
        for d in T.serial(T.min(GROUP, D - g * GROUP)):
            largest[0] = T.max(
                largest[0], T.reinterpret(T.abs(x[row, h, g * GROUP + d]), dtype="int32")
            )
        pages[slot // PAGE, h, kind, T.ramp(scales_at(PAGE, D, g, slot % PAGE), 1, 2)] = two_bytes(
            scale_bits(largest[0])
        )
        for d in T.serial(T.min(GROUP, D - g * GROUP)):
            pages[slot // PAGE, h, kind, slot % PAGE * D + g * GROUP + d] = whole(
                x[row, h, g * GROUP + d] * inverse(scale_bits(largest[0]))
            )


@cache
def store(kv_heads: int, head_dim: int, dtype: str = "float32") -> PrimFunc:
    """pages[slot[i]] = key[i], value[i], in place:

    key, value    float32 [m, kv_heads, head_dim]
    slot          int32 [m]: page * PAGE + place in the page
    """
    block = block_elements(dtype, PAGE, head_dim)

    @T.prim_func(private=True, s_tir=True)
    def store_kv(key: T.handle, value: T.handle, slot: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        K = T.match_buffer(key, (m, kv_heads, head_dim), "float32")
        V = T.match_buffer(value, (m, kv_heads, head_dim), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (n, kv_heads, 2, block), dtype)
        with T.sblock("root"):
            if dtype == "int8":
                for i, h in T.grid(m, kv_heads):
                    _store_bytes(P, S[i], h, 0, K, i)
                    _store_bytes(P, S[i], h, 1, V, i)
            else:
                for i, h, d in T.grid(m, kv_heads, head_dim):
                    P[S[i] // PAGE, h, 0, S[i] % PAGE * head_dim + d] = K[i, h, d]
                    P[S[i] // PAGE, h, 1, S[i] % PAGE * head_dim + d] = V[i, h, d]

    return store_kv


@record(eq=False)
class Attended:
    """What `attention` reads, and its row of scores; the kernel describes the buffers."""

    queries: Buffer
    of_sinks: Buffer
    pages: Buffer
    place: Buffer
    query_blocks: Buffer
    page_ids: Buffer
    window: Buffer
    sink: Buffer
    first_seen: Buffer
    scores: Buffer
    heads_per_kv: int
    both_sides: bool

    def sees(self, row: Expr, t: Expr) -> Expr:
        """Whether that token sees place t, which is not behind its own."""
        if self.both_sides:
            return t >= self.first_seen[row]
        return T.Or(t < self.window[1], t > self.place[row] - self.window[0])

    def query(self, row: Expr, h: Expr, t: Expr, d: Expr) -> Expr:
        """Element d of the query with which that token sees place t."""
        is_sink = t < self.window[1]
        return T.if_then_else(is_sink, self.of_sinks[row, h, d], self.queries[row, h, d])

    def element(self, block: Expr, h: Expr, kind: int, t: Expr, d: Expr) -> Expr:
        """Element d of the key (0) or value (1) at place t, for query head h."""
        page = self.page_ids[self.query_blocks[block, 2] + t // PAGE]
        head_dim, head = int(self.queries.shape[2]), h // self.heads_per_kv
        found = self.pages[page, head, kind, t % PAGE * head_dim + d]
        if int(self.pages.shape[3]) == PAGE * head_dim:  # numbers without scales
            return found
        start = scales_at(PAGE, head_dim, d // GROUP, t % PAGE)
        scale = read_scales(self.pages, page, head, kind, start, 1)
        return T.cast(found, "float32") * scale


@T.inline
def _score(given, block, row, h, scale, cap, best):
    """The scores of all that a token sees; best[0]: the largest."""
    S = T.meta_var(given.scores)
    best[0] = given.sink[h]
    for t in T.serial(given.place[row] + 1):
        S[t] = T.float32(LOWEST)
        if given.sees(row, t):
            S[t] = T.float32(0)
            for d in T.serial(given.queries.shape[2]):
                S[t] = S[t] + given.query(row, h, t, d) * given.element(block, h, 0, t, d)
            S[t] = S[t] * T.float32(scale)
            if cap is not None:
                S[t] = T.tanh(S[t] / T.float32(cap)) * T.float32(cap)
            best[0] = T.max(best[0], S[t])


@T.inline
def _sum_values(given, block, row, h, best, total, out):
    """The weighted sum of all values that a token sees; total[0]: the sum of the weights."""
    S = T.meta_var(given.scores)
    total[0] = T.exp(given.sink[h] - best[0])
    for d in T.serial(given.queries.shape[2]):
        out[row, h, d] = T.float32(0)
    for t in T.serial(given.place[row] + 1):
        if given.sees(row, t):
            S[t] = T.exp(S[t] - best[0])
            total[0] = total[0] + S[t]
            for d in T.serial(given.queries.shape[2]):
                out[row, h, d] = out[row, h, d] + S[t] * given.element(block, h, 1, t, d)


@cache
def attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    cap: float | None = None,
    both_sides: bool = False,
    dtype: str = "float32",
) -> PrimFunc:
    """softmax(q k^T * scale) v over what each token sees. Arguments as in
    `library/signatures.py`, a query block for each token; scores are kept in `scores`:

    q         float32 [m, heads, head_dim], rotated; of_sinks: the query with which the first
              window[1] tokens are seen
    sink      float32 [heads]: a score more, without a value; LOWEST if the model has none
    first_seen  int32 [m], the first place that each token sees, in place of a window; it is there
                if `both_sides`
    scores    float32 [positions]: room for one row of scores
    out       float32 [m, heads, head_dim]

    cap: a score s becomes cap * tanh(s / cap). dtype: of the pages.
    """
    size = block_elements(dtype, PAGE, head_dim)

    @T.prim_func(private=True, s_tir=True)
    def paged_attention(
        q: T.handle,
        of_sinks: T.handle,
        pages: T.handle,
        place: T.handle,
        query_blocks: T.handle,
        page_ids: T.handle,
        window: T.handle,
        sink: T.handle,
        first_seen: T.handle,
        scores: T.handle,
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        b = T.int32()
        n = T.int32()
        ids = T.int32()
        positions = T.int32()
        Q = T.match_buffer(q, (m, heads, head_dim), "float32")
        F = T.match_buffer(of_sinks, (m, heads, head_dim), "float32")
        P = T.match_buffer(pages, (n, kv_heads, 2, size), dtype)
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(query_blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (ids,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        L = T.match_buffer(sink, (heads,), "float32")
        FIRST = T.match_buffer(first_seen, (m,), "int32")
        S = T.match_buffer(scores, (positions,), "float32")
        O = T.match_buffer(out, (m, heads, head_dim), "float32")
        with T.sblock("root"):
            per_kv = T.meta_var(heads // kv_heads)
            given = T.meta_var(Attended(Q, F, P, AT, B, IDS, W, L, FIRST, S, per_kv, both_sides))
            best = T.alloc_buffer((1,), "float32")
            total = T.alloc_buffer((1,), "float32")
            for block, h in T.grid(b, heads):
                row: T.let[T.int32] = B[block, 0]
                _score(given, block, row, h, scale, cap, best)
                _sum_values(given, block, row, h, best, total, O)
                for d in T.serial(head_dim):
                    O[row, h, d] = O[row, h, d] / total[0]

    return without(paged_attention, *(() if both_sides else ("FIRST",)))


@cache
def put_rows(width: int) -> PrimFunc:
    """x[at[i]] = rows[i] in place, for int32 [s] indices; -1 stands for no row."""

    @T.prim_func(private=True, s_tir=True)
    def put(at: T.handle, rows: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        s = T.int32()
        AT = T.match_buffer(at, (s,), "int32")
        R = T.match_buffer(rows, (s, width), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        with T.sblock("root"):
            for i, j in T.grid(s, width):
                if AT[i] >= 0:
                    X[AT[i], j] = R[i, j]

    return put


@cache
def copy_pages(kv_heads: int, head_dim: int, dtype: str = "float32") -> PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices, in place."""
    size = block_elements(dtype, PAGE, head_dim)

    @T.prim_func(private=True, s_tir=True)
    def copy(source: T.handle, target: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        n = T.int32()
        p = T.int32()
        FROM = T.match_buffer(source, (n,), "int32")
        TO = T.match_buffer(target, (n,), "int32")
        P = T.match_buffer(pages, (p, kv_heads, 2, size), dtype)
        with T.sblock("root"):
            for i, h, kv, j in T.grid(n, kv_heads, 2, size):
                P[TO[i], h, kv, j] = P[FROM[i], h, kv, j]

    return copy


@cache
def edit_logits(vocab: int, width: int) -> PrimFunc:
    """Edits one after the other, then masks (see `library/signatures.py`); logits float32
    [s, width], changed in place."""
    words = -(-vocab // 32)

    @T.prim_func(private=True, s_tir=True)
    def edit(
        place: T.handle, number: T.handle, masked: T.handle, allowed: T.handle, logits: T.handle
    ):
        T.func_attr(SCHEDULED)
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
