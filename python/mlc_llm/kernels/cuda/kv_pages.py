"""KV pages: how they look, how new tokens get into them, how a page is copied.

A layer's pages are one tensor [pages, kv_heads, 2, elements of a block]: keys (0) and values (1),
each float16 [PAGE, head_dim], or bytes with scales (`library/page_format.py`). Pages start as
zeros. A layer may have more than 2^31 elements, so pages are counted in 64 bits.

rope_append:
    a block for each token and each head, of queries, then of keys and values:
        rotated = turn(query, position) * factor
        with sink_query:  rotated, behind it = turn(query, sink_position) * factor
        page keys = turn(key, position);  page values = value

With cosines and sines of a position, elements i and i + dim/2 of the first `dim` elements of a head
are a pair; the others stay (Su et al. 2021):

    low, high = low * cos - high * sin, high * cos + low * sin
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.threads import SCHEDULED, block_size, grid
from mlc_llm.kernels.heads import Heads
from mlc_llm.kernels.page_bytes import inverse, scale_bits, scales_at, whole
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.page_format import GROUP, SCALE_BYTES, block_elements
from mlc_llm.record import record

THREADS = 64
HALVES = 8
"""Numbers of a page that a thread copies at once."""
LOG2E = 1.4426950408889634


@record(eq=False)
class Columns:
    """A head of a token: its tensor, the column of its first element, and the biases of all heads,
    of which its own begin at `first`."""

    x: Buffer
    row: Expr
    start: Expr
    bias: Buffer | None
    first: Expr

    def at(self, i: Index) -> Expr:
        """Element i."""
        x = self.x[self.row, self.start + i]
        return x if self.bias is None else x + self.bias[self.first + i]


@record(eq=False)
class _Store:
    """Where the keys and values of a token and head go."""

    pages: Buffer
    page: Expr
    head: Expr
    place: Expr
    dim: int

    @T.inline
    def put(self, kind, i, x):
        """Element i, if there is one."""
        if i < self.dim:
            self.pages[self.page, self.head, kind, self.place * self.dim + i] = T.cast(x, "float16")

    @T.inline
    def put_byte(self, kind, i, x):
        """The same as a byte, and the scale of its group, whose elements a warp has."""
        bits = T.alloc_buffer((1,), "int32", scope="local")
        size = T.alloc_buffer((1,), "float32", scope="local")
        size[0] = T.abs(x)
        bits[0] = T.cuda.warp_max(T.reinterpret(size[0], dtype="int32"))
        bits[0] = scale_bits(bits[0])
        if i < self.dim:
            self.pages[self.page, self.head, kind, self.place * self.dim + i] = whole(
                x * inverse(bits[0])
            )
            if i % GROUP == 0:
                for byte in T.unroll(SCALE_BYTES):
                    at = T.meta_var(scales_at(PAGE, self.dim, i // GROUP, self.place) + byte)
                    self.pages[self.page, self.head, kind, at] = T.cast(
                        T.shift_right(bits[0], 16 + 8 * byte), "int8"
                    )


def _turned(sizes: Heads, head: Columns, rope: Buffer, position: Expr, i: Expr) -> Expr:
    """Element i of a head, turned."""
    if sizes.half == 0:
        return head.at(i)
    pair = i % sizes.half
    low, high = head.at(pair), head.at(sizes.half + pair)
    cos, sin = rope[position, 0, pair], rope[position, 1, pair]
    turned = T.if_then_else(i < sizes.half, low * cos - high * sin, high * cos + low * sin)
    if sizes.rest == 0:
        return turned
    return T.if_then_else(i < sizes.rope_dim, turned, head.at(i))


def _query_factor(sizes: Heads, position: Expr) -> Expr:
    """What queries are multiplied by, for a token at that position."""
    factor = T.float32(LOG2E * sizes.scale)
    if sizes.query_scaling is None:
        return factor
    beta, context = sizes.query_scaling
    turns = T.cast(T.floordiv(position, context) + 1, "float32")
    return (T.log(turns) * T.float32(beta) + T.float32(1)) * factor


def _position(sink_query: bool, half: Expr, own: Buffer, sink: Buffer, row: Expr) -> Expr:
    """What turns a token's queries in a half of its row."""
    return T.if_then_else(half == 0, own[row], sink[row]) if sink_query else own[row]


def _unread(sizes: Heads, sink_query: bool) -> tuple[str, ...]:
    """Arguments that a kernel does not have."""
    return (*(() if sizes.half else ("R",)), *(() if sink_query else ("SINK",)))


@cache
def rope_append(
    sizes: Heads,
    widths: tuple[int, int, int],
    offsets: tuple[int, int, int],
    *,
    sink_query: bool = False,
    has_bias: bool = False,
) -> PrimFunc:
    """Rotates queries and keys, stores keys and values in pages.

    q, k, v      float32 [m, widths[i]]: each starts at column offsets[i] (they may be one tensor)
    q_bias, ...  float32 [heads * head_dim] and twice [kv_heads * head_dim], added to them; there
                 are none unless `has_bias`
    rope         float32 [n, 2, rope_dim/2]: cosines, then sines, of every position; there is none
                 if nothing turns
    position     int32 [m], each below n
    sink_position  the same; there is none unless `sink_query`
    slot         int32 [m]: page * PAGE + place in the page
    pages        changed in place
    rotated      float32 [m, heads * head_dim]: queries, scaled as `Heads` says; with `sink_query`
                 twice as long, the second half turned by sink_position
    """
    assert not (sink_query and sizes.query_scaling), "positions that turn sinks are no others"
    turns = 2 if sink_query else 1
    heads, kv_heads, dim = sizes.heads, sizes.kv_heads, sizes.head_dim
    elements = block_elements(sizes.kv_dtype, PAGE, dim)

    def head_of(x: Buffer, row: Expr, i: int, bias: Buffer, h: Expr) -> Columns:
        """Head h of the queries (0), keys (1) or values (2)."""
        return Columns(x, row, offsets[i] + h * dim, bias if has_bias else None, h * dim)

    @T.prim_func(private=True)
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
        Q_BIAS = T.match_buffer(q_bias, (heads * dim,), "float32")
        K_BIAS = T.match_buffer(k_bias, (kv_heads * dim,), "float32")
        V_BIAS = T.match_buffer(v_bias, (kv_heads * dim,), "float32")
        R = T.match_buffer(rope, (n, 2, sizes.half), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        S = T.match_buffer(slot, (m,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, elements), sizes.kv_dtype)
        O = T.match_buffer(rotated, (m, turns * heads * dim), "float32")
        T.device_entry()
        row, h = T.cta_id([m, turns * heads + kv_heads])
        thread = T.thread_id([THREADS])
        for part in T.serial(T.ceildiv(dim, THREADS)):
            i: T.let[T.int32] = part * THREADS + thread
            if h < turns * heads:
                turn: T.let[T.int32] = _position(sink_query, h // heads, POS, SINK, row)
                if i < dim:
                    O[row, h * dim + i] = _turned(
                        sizes, head_of(Q, row, 0, Q_BIAS, h % heads), R, turn, i
                    ) * _query_factor(sizes, turn)
            else:
                own = T.meta_var(h - turns * heads)
                key = T.meta_var(head_of(K, row, 1, K_BIAS, own))
                value = T.meta_var(head_of(V, row, 2, V_BIAS, own))
                store = T.meta_var(
                    _Store(P, T.cast(S[row] // PAGE, "int64"), own, S[row] % PAGE, dim)
                )
                x = T.alloc_buffer((2,), "float32", scope="local")
                for kind in T.unroll(2):
                    x[kind] = T.float32(0)
                if i < dim:
                    x[0] = _turned(sizes, key, R, POS[row], i)
                    x[1] = value.at(i)
                for kind in T.unroll(2):
                    if sizes.kv_dtype == "int8":
                        store.put_byte(kind, i, x[kind])
                    else:
                        store.put(kind, i, x[kind])

    biases = () if has_bias else ("Q_BIAS", "K_BIAS", "V_BIAS")
    return without(append, *biases, *_unread(sizes, sink_query))


@cache
def rotate_queries(
    sizes: Heads, width: int, offset: int, *, sink_query: bool = False, has_bias: bool = False
) -> PrimFunc:
    """Rotates queries alone, for a layer that reads the pages of another one; the arguments are
    those of `rope_append`: q, q_bias, rope, position, sink_position, rotated."""
    turns = 2 if sink_query else 1
    heads, dim = sizes.heads, sizes.head_dim

    @T.prim_func(private=True)
    def rotate(
        q: T.handle,
        q_bias: T.handle,
        rope: T.handle,
        position: T.handle,
        sink_position: T.handle,
        rotated: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        Q = T.match_buffer(q, (m, width), "float32")
        Q_BIAS = T.match_buffer(q_bias, (heads * dim,), "float32")
        R = T.match_buffer(rope, (n, 2, sizes.half), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        O = T.match_buffer(rotated, (m, turns * heads * dim), "float32")
        T.device_entry()
        row, h = T.cta_id([m, turns * heads])
        thread = T.thread_id([THREADS])
        own = T.meta_var(h % heads * dim)
        head = T.meta_var(Columns(Q, row, offset + own, Q_BIAS if has_bias else None, own))
        for part in T.serial(T.ceildiv(dim, THREADS)):
            i: T.let[T.int32] = part * THREADS + thread
            if i < dim:
                turn: T.let[T.int32] = _position(sink_query, h // heads, POS, SINK, row)
                O[row, h * dim + i] = _turned(sizes, head, R, turn, i) * _query_factor(sizes, turn)

    biases = () if has_bias else ("Q_BIAS",)
    return without(rotate, *biases, *_unread(sizes, sink_query))


@cache
def copy_pages(kv_heads: int, head_dim: int, kv_dtype: str = "float16") -> PrimFunc:
    """pages[target[i]] = pages[source[i]] for int32 [n] indices; changes `pages` in place. No page
    is both a source and a target."""
    size = block_elements(kv_dtype, PAGE, head_dim)
    threads = block_size(size // HALVES)

    @T.prim_func(private=True)
    def copy(source: T.handle, target: T.handle, pages: T.handle):
        T.func_attr(SCHEDULED)
        n = T.int32()
        num_pages = T.int32()
        FROM = T.match_buffer(source, (n,), "int32")
        TO = T.match_buffer(target, (n,), "int32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, size), kv_dtype)
        T.device_entry()
        i, h, kind = T.cta_id([grid(n), kv_heads, 2])
        thread = T.thread_id([threads])
        if i < n:
            for part in T.serial(T.ceildiv(size // HALVES, threads)):
                if part * threads + thread < size // HALVES:
                    for j in T.vectorized(HALVES):
                        P[
                            T.cast(TO[i], "int64"), h, kind, (part * threads + thread) * HALVES + j
                        ] = P[
                            T.cast(FROM[i], "int64"),
                            h,
                            kind,
                            (part * threads + thread) * HALVES + j,
                        ]

    return copy
