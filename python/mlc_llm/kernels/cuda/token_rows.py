"""What happens to the rows of single tokens, beside norms and products.

put_rows       x[at[i]] = rows[i], if at[i] is not -1           a block for each i
token_gate     y = sigmoid(x . weight) * y                      a block for each token
token_inputs   x = (x + norm(context)) / sqrt(2), part by part  a block for each part of each token
keep, kept     vectors of tokens into pages, and back           a block for each token;
               what is beyond float16 becomes the greatest one

A page of kv_heads, 2 and PAGE * head_dim numbers has the vectors of PAGE tokens, one behind the
other, each in a part of 2 * kv_heads * head_dim numbers. A longer vector has pages in several
tensors; `start` is its first number in this one.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.cuda.planes import row_words, scale_word
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, block_sum, grid
from mlc_llm.kernels.cuda.tiles import half_of
from mlc_llm.kernels.types import Buffer, Expr

MOST = 65504.0
"""The greatest float16."""


def number(x: Buffer, k: int, row: Expr, i: Expr) -> Expr:
    """float32: a number of a row of planes (`planes.py`), divided by the row's scale."""
    high, low = (half_of(x[row, plane * (k // 2) + i // 2], i % 2) for plane in range(2))
    return high + low


def row_scale(x: Buffer, k: int, row: Expr) -> Expr:
    """float32: the scale of a row of planes."""
    return T.reinterpret(x[row, scale_word(k)], dtype="float32")


@cache
def put_rows(width: int) -> PrimFunc:
    """Kernel of (at int32 [v], rows float32 [v, width], x float32 [m, width])."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def put(at: T.handle, rows: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        v = T.int32()
        AT = T.match_buffer(at, (v,), "int32")
        ROWS = T.match_buffer(rows, (v, width), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        i = T.cta_id([grid(v)])
        thread = T.thread_id([threads])
        if i < v:
            if AT[i] >= 0:
                for part in T.serial(T.ceildiv(width, threads)):
                    if part * threads + thread < width:
                        X[AT[i], part * threads + thread] = ROWS[i, part * threads + thread]

    return put


@cache
def token_gate(k: int, width: int) -> PrimFunc:
    """Kernel of (x uint32 [m, row_words(k)], weight float32 [k], y float32 [m, width])."""
    threads = block_size(k)
    warps = threads // WARP

    @T.prim_func(private=True)
    def gate_tokens(x: T.handle, weight: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        N = T.match_buffer(weight, (k,), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        if row < m:
            total[0] = T.float32(0)
            for part in T.serial(T.ceildiv(k, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < k:
                    total[0] = total[0] + number(X, k, row, i) * N[i]
            block_sum(total, thread, warps, scratch)
            total[0] = total[0] * row_scale(X, k, row)
            total[0] = T.float32(1) / (
                T.float32(1) + T.exp(T.min(T.float32(0) - total[0], T.float32(87)))
            )
            for part in T.serial(T.ceildiv(width, threads)):
                if part * threads + thread < width:
                    Y[row, part * threads + thread] = Y[row, part * threads + thread] * total[0]

    return gate_tokens


@cache
def token_inputs(parts: int, width: int, columns: int, eps: float) -> PrimFunc:
    """Kernel of (context float32 [m, columns], weight float32 [width], x float32 [m, parts * width]
    or longer rows), which changes x in place."""
    threads = block_size(width)
    turns, warps = -(-width // threads), threads // WARP

    @T.prim_func(private=True)
    def add_context(context: T.handle, weight: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        C = T.match_buffer(context, (m, columns), "float32")
        N = T.match_buffer(weight, (width,), "float32")
        X = T.match_buffer(x, (m, parts * width), "float32")
        T.device_entry()
        row, part = T.cta_id([grid(m), parts])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((turns,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        if row < m:
            total[0] = T.float32(0)
            for i in T.unroll(turns):
                v[i] = T.float32(0)
                if i * threads + thread < width:
                    v[i] = C[row, part * width + i * threads + thread]
                total[0] = total[0] + v[i] * v[i]
            block_sum(total, thread, warps, scratch)
            total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(width) + T.float32(eps))
            for i in T.unroll(turns):
                if i * threads + thread < width:
                    v[i] = v[i] * total[0] * N[i * threads + thread]
                    X[row, part * width + i * threads + thread] = (
                        X[row, part * width + i * threads + thread] + v[i]
                    ) * T.float32(0.5**0.5)

    return add_context


@cache
def keep(kv_heads: int, head_dim: int, columns: int, start: int, count: int) -> PrimFunc:
    """Kernel arguments:

    x      float32 [m, columns], of which `count` from `start` on are stored
    slot   int32 [m]: page * PAGE + place in the page
    pages  float16 [pages, kv_heads, 2, PAGE * head_dim]
    """
    size, room, threads = PAGE * head_dim, 2 * kv_heads * head_dim, block_size(count)

    @T.prim_func(private=True)
    def keep_vectors(x: T.handle, slot: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        X = T.match_buffer(x, (m, columns), "float32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (n, kv_heads, 2, size), "float16")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(count, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < count:
                    at: T.let[T.int32] = S[row] % PAGE * room + i
                    one: T.let[T.float32] = T.min(X[row, start + i], T.float32(MOST))
                    P[
                        T.cast(S[row] // PAGE, "int64"), at // (2 * size), at // size % 2, at % size
                    ] = T.cast(T.max(one, T.float32(-MOST)), "float16")

    return keep_vectors


@cache
def kept(kv_heads: int, head_dim: int, columns: int, start: int, count: int) -> PrimFunc:
    """The other way: arguments pages, slot (-1: all 0), and y float32 [m, columns]."""
    size, room, threads = PAGE * head_dim, 2 * kv_heads * head_dim, block_size(count)

    @T.prim_func(private=True)
    def kept_vectors(pages: T.handle, slot: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        P = T.match_buffer(pages, (n, kv_heads, 2, size), "float16")
        S = T.match_buffer(slot, (m,), "int32")
        Y = T.match_buffer(y, (m, columns), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        if row < m:
            for part in T.serial(T.ceildiv(count, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < count:
                    Y[row, start + i] = T.float32(0)
                    if S[row] >= 0:
                        at: T.let[T.int32] = S[row] % PAGE * room + i
                        Y[row, start + i] = T.cast(
                            P[
                                T.cast(S[row] // PAGE, "int64"),
                                at // (2 * size),
                                at // size % 2,
                                at % size,
                            ],
                            "float32",
                        )

    return kept_vectors
