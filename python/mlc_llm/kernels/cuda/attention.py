"""Causal attention of new tokens over paged keys and values, on tensor cores.

    a block for each query block and KV head; 16 rows of queries for a warp (`attention_tiles.py`)
    in larger steps:
        for each share, for each KV split of it that is seen:
            keys and values of the next one are copied to shared memory meanwhile
            each warp folds the split into the sums of its rows
        out = what all shares gave, folded in order / the sum of its weights
    in steps of up to FEW tokens, which have blocks for shares too:
        each warp has a share of its own, and `join` does the rest

A KV split is a page: 16 places from a multiple of 16 on. Split i belongs to share i % SHARES. How a
row is computed depends on nothing but its own place, so its bits are the same in any step. Queries
have the factor log2(e) (`Heads.scale`), so powers are those of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.attention_tiles import (
    LOG2E,
    LOWEST,
    SHARES,
    SPLIT,
    TILE,
    UNIT,
    Registers,
    Seen,
    Sizes,
    Tile,
)
from mlc_llm.kernels.cuda.tensor_cores import commit, wait
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import block_elements

FEW = 64
"""Tokens of a small step. There are blocks enough in a larger one."""
STATE = 2
"""Numbers of a share beside its elements: the largest score, and the sum of the weights."""
_FMA = "fma.rn.f32"
_REGISTERS = {"tirx.launch_bounds_min_blocks_per_sm": 2}
"""So many blocks of a multiprocessor leave a thread 255 registers. By itself the compiler takes 32,
and then keeps numbers in memory."""


@cache
def attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    cap: float | None = None,
    has_sinks: bool = False,
    has_first: bool = False,
    kv_dtype: str = "float16",
) -> PrimFunc:
    """softmax(q k^T) v over what each token sees:

    q             float32 [m, heads * head_dim], as `rope_append` makes them
    pages         kv_dtype [pages, kv_heads, 2, elements of a block] (`library/page_format.py`)
    place, query_blocks, page_ids, window   as in `library/signatures.py`; a query block has up to
                  `Sizes.tokens` tokens
    first_seen    int32 [m]: the first place that a token sees, in the window's stead; it is there
                  only if `has_first`
    sinks         float32 [heads]: of each head a score more, without a value; there are none unless
                  `has_sinks`
    shares        float32 [FEW at most, heads, SHARES, STATE + head_dim]: what `join` reads
    out           float32 [m, heads * head_dim], which only steps of more than FEW tokens write

    cap: a score s becomes cap * tanh(s / cap). head_dim: a multiple of 8.
    """
    assert head_dim % 8 == 0 and heads % kv_heads == 0
    sizes = Sizes(head_dim, heads // kv_heads, kv_dtype == "int8")
    elements = block_elements(kv_dtype, PAGE, head_dim)
    rows = _Rows(sizes, cap, has_sinks)

    @T.prim_func(private=True)
    def paged_attention(
        q: T.handle, pages: T.handle, place: T.handle, query_blocks: T.handle, page_ids: T.handle,
        window: T.handle, first_seen: T.handle, sinks: T.handle, shares: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        few = T.int32()
        b = T.int32()
        n = T.int32()
        ids = T.int32()
        Q = T.match_buffer(q, (m, heads * head_dim), "float32")
        P = T.match_buffer(pages, (n, kv_heads, 2, elements), kv_dtype)
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(query_blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (ids,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        FIRST = T.match_buffer(first_seen, (m,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        PART = T.match_buffer(shares, (few, heads, SHARES, STATE + head_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        T.attr(_REGISTERS)
        block, kv_head, own = T.cta_id([b, kv_heads, T.Select(m <= FEW, SHARES // sizes.tiles, 1)])
        lane, warp = T.thread_id([WARP, sizes.warps])
        MEM = T.alloc_buffer((sizes.words,), "uint32", scope="shared.dyn", align=128)
        scales = T.alloc_buffer((2,), "float32", scope="local")
        begins = T.alloc_buffer((2,), "int32", scope="local")
        places = T.alloc_buffer((2,), "int32", scope="local")
        seen_window = T.alloc_buffer((2,), "int32", scope="local")
        queries = T.alloc_buffer((rows.kept,), "uint32", scope="local")
        best = T.alloc_buffer((2,), "float32", scope="local")
        total = T.alloc_buffer((4,), "float32", scope="local")
        sums = T.alloc_buffer((sizes.blocks * 4,), "float32", scope="local")
        whole_best = T.alloc_buffer((2,), "float32", scope="local")
        whole_total = T.alloc_buffer((4,), "float32", scope="local")
        whole_sums = T.alloc_buffer(
            (1 if sizes.are_kept else sizes.blocks * 4,), "float32", scope="local"
        )
        regs = T.meta_var(Registers(queries, scales, begins, places, best, total, sums))
        whole = T.meta_var(
            Registers(queries, scales, begins, places, whole_best, whole_total, whole_sums)
        )
        seen = T.meta_var(
            Seen(
                *(P, IDS, B[block, 2], kv_head, seen_window),
                FIRST if has_first else None,
            )
        )
        given = T.meta_var(_Given(Q, AT, B, block, kv_head))
        for i in T.unroll(2):
            seen_window[i] = W[i]
        if m <= FEW:
            rows.few(given, PART, own, seen, MEM, lane, warp, regs)
        else:
            rows.many(given, SINKS, O, seen, MEM, lane, warp, regs, whole)

    unread = [*([] if has_sinks else ["SINKS"]), *([] if has_first else ["FIRST"])]
    return without(paged_attention, *unread)


@dataclass(frozen=True, eq=False)
class _Given:
    """The tables of all tokens, and what a block of threads computes."""

    queries: Buffer
    places: Buffer
    blocks: Buffer
    block: Expr
    kv_head: Expr


class _Rows:
    """Statements of `attention`: the rows of a block, and how the splits are shared by warps.

    Row r of a query block is its token r // group, and the head r % group of its KV head."""

    def __init__(self, sizes: Sizes, cap: float | None, has_sinks: bool) -> None:
        self.sizes, self.has_sinks = sizes, has_sinks
        self.tile = Tile(sizes, cap)
        self.kept = 8 * (sizes.steps if sizes.are_kept else 1)
        self.threads = sizes.warps * WARP

    @T.inline
    def few(self, given, PART, own, seen, MEM, lane, warp, regs):
        """Each warp has a share of the rows of a tile, tile by tile."""
        sizes, B, block = T.meta_var(self.sizes), T.meta_var(given.blocks), T.meta_var(given.block)
        for turn in T.serial(T.ceildiv(B[block, 1] * sizes.group, TILE)):
            first: T.let[T.int32] = turn * TILE
            self.put_queries(given.queries, B, block, given.kv_head, first, TILE, MEM, lane, warp)
            self.take(given.places, B, block, first, 0, TILE, seen, MEM, lane, regs)
            self.attend_share(
                *(given.places, B, block, first, own * sizes.tiles, seen, MEM, lane, warp, regs)
            )
            self.keep(
                *(PART, B, block, given.kv_head, first),
                *(own * sizes.tiles + warp // sizes.parts, lane, warp, regs),
            )

    @T.inline
    def many(self, given, SINKS, O, seen, MEM, lane, warp, regs, whole):
        """Each warp has a tile of rows, and all shares of it."""
        sizes, B, block = T.meta_var(self.sizes), T.meta_var(given.blocks), T.meta_var(given.block)
        for turn in T.serial(T.ceildiv(B[block, 1] * sizes.group, sizes.rows)):
            first: T.let[T.int32] = turn * sizes.rows
            mine: T.let[T.int32] = warp // sizes.parts * TILE
            self.put_queries(
                *(given.queries, B, block, given.kv_head, first, sizes.rows, MEM, lane, warp)
            )
            self.take(given.places, B, block, first, mine, sizes.rows, seen, MEM, lane, regs)
            self.begin(SINKS, given.kv_head, first + mine, MEM, lane, warp, whole)
            self.attend_all(given.places, B, block, first, seen, MEM, lane, warp, regs, whole)
            self.end(O, B, block, given.kv_head, first + mine, MEM, lane, warp, whole)

    @T.inline
    def put_queries(self, Q, B, block, kv_head, first, count, MEM, lane, warp):
        """The queries of rows from `first` on, for all warps."""
        group, width = T.meta_var(self.sizes.group), T.meta_var(self.sizes.head_dim)
        T.cuda.cta_sync()
        for turn in T.serial(T.ceildiv(count, self.sizes.warps)):
            row: T.let[T.int32] = turn * self.sizes.warps + warp
            if row < count:
                at: T.let[T.int32] = first + row
                self.tile.put_query(
                    Q, B[block, 0] + at // group, (kv_head * group + at % group) * width,
                    at < B[block, 1] * group, MEM, row, count, lane,
                )  # fmt: skip
        self.tile.zero_ends(
            *(MEM, self.sizes.queries(count)),
            *((self.sizes.words - self.sizes.queries(count)) // self.sizes.stage,),
            *(warp * WARP + lane, self.threads),
        )
        T.cuda.cta_sync()

    @T.inline
    def take(self, AT, B, block, first, mine, count, seen, MEM, lane, regs):
        """What a thread knows of the rows of its tile, which begins with row `mine` of these."""
        for i in T.unroll(2):
            at: T.let[T.int32] = first + mine + i * 8 + lane // 4
            regs.place[i] = T.int32(-1)
            regs.begin[i] = T.int32(0)
            if at < B[block, 1] * self.sizes.group:
                regs.place[i] = AT[B[block, 0] + at // self.sizes.group]
                regs.begin[i] = seen.begin(AT, B[block, 0] + at // self.sizes.group)
        self.tile.take_queries(MEM, mine, count, lane, regs)

    def last_token(self, B: Buffer, block: Expr, first: Expr, count: int) -> Expr:
        """Of so many rows from `first` on."""
        return B[block, 0] + T.min((first + count - 1) // self.sizes.group, B[block, 1] - 1)

    @T.inline
    def attend_share(self, AT, B, block, first, share, seen, MEM, lane, warp, regs):
        """The sums of share `share` + the number of the warp's tile, of which each has copies of
        its own."""
        sizes = T.meta_var(self.sizes)
        together = T.meta_var(sizes.parts * WARP)
        start: T.let[T.int32] = sizes.queries(TILE) + warp // sizes.parts * 2 * sizes.stage
        own: T.let[T.int32] = share + warp // sizes.parts
        low: T.let[T.int32] = seen.begin(AT, B[block, 0] + first // sizes.group)
        last: T.let[T.int32] = AT[self.last_token(B, block, first, TILE)]
        thread: T.let[T.int32] = warp % sizes.parts * WARP + lane
        self.tile.clear(regs)
        if seen.sees_split(own, low, last):
            self.tile.copy_split(seen, own, last, MEM, start, thread, together)
        commit()
        for turn in T.serial(T.ceildiv(last // SPLIT + 1 - share, SHARES)):
            split: T.let[T.int32] = turn * SHARES + own
            if seen.sees_split(split + SHARES, low, last):
                self.tile.copy_split(
                    seen, split + SHARES, last, MEM,
                    start + (turn + 1) % 2 * sizes.stage, thread, together,
                )  # fmt: skip
            commit()
            wait(1)
            self.meet()
            if seen.sees_split(split, low, last):
                self.tile.attend(
                    seen, split, MEM, 0, TILE, start + turn % 2 * sizes.stage,
                    warp % sizes.parts, lane, regs,
                )  # fmt: skip
            self.meet()

    @T.inline
    def meet(self):
        """Waits for the other warps of the tile."""
        if self.sizes.parts == 1:
            T.cuda.warp_sync()
        else:
            T.cuda.cta_sync()

    @T.inline
    def attend_all(self, AT, B, block, first, seen, MEM, lane, warp, regs, whole):
        """The sums of all shares; all warps of the block read the same copies."""
        sizes = T.meta_var(self.sizes)
        start, mine = T.meta_var(sizes.queries(sizes.rows)), T.meta_var(warp // sizes.parts * TILE)
        low: T.let[T.int32] = seen.begin(AT, B[block, 0] + first // sizes.group)
        last: T.let[T.int32] = AT[self.last_token(B, block, first, sizes.rows)]
        thread: T.let[T.int32] = warp * WARP + lane
        count: T.let[T.int32] = last // SPLIT + 1
        now = T.alloc_buffer((2,), "int32", scope="local")
        now[0] = 0
        self.tile.clear(regs)
        if seen.sees_split(0, low, last):
            self.tile.copy_split(seen, 0, last, MEM, start, thread, self.threads)
        commit()
        for turn in T.serial(count):
            now[1] = now[0] + SHARES
            if now[1] >= count:
                now[1] = now[0] % SHARES + 1
            if T.And(turn + 1 < count, seen.sees_split(now[1], low, last)):
                self.tile.copy_split(
                    seen, now[1], last, MEM,
                    start + (turn + 1) % 2 * sizes.stage, thread, self.threads,
                )  # fmt: skip
            commit()
            wait(1)
            T.cuda.cta_sync()
            if seen.sees_split(now[0], low, last):
                self.tile.attend(
                    seen, now[0], MEM, mine, sizes.rows, start + turn % 2 * sizes.stage,
                    warp % sizes.parts, lane, regs,
                )  # fmt: skip
            T.cuda.cta_sync()
            if now[1] % SHARES != now[0] % SHARES:
                self.tile.fold(MEM, thread, whole, regs)
                self.tile.clear(regs)
            now[0] = now[1]

    @T.inline
    def begin(self, SINKS, kv_head, first, MEM, lane, warp, whole):
        """Nothing is seen yet but a sink."""
        T.cuda.cta_sync()
        self.tile.clear_whole(MEM, warp * WARP + lane, whole)
        if self.has_sinks:
            for i in T.unroll(2):
                h: T.let[T.int32] = (first + i * 8 + lane // 4) % self.sizes.group
                whole.best[i] = SINKS[kv_head * self.sizes.group + h] * T.float32(LOG2E)
                whole.total[i * 2] = T.float32(UNIT)

    @T.inline
    def keep(self, PART, B, block, kv_head, first, share, lane, warp, regs):
        """Writes a share for `join`."""
        group = T.meta_var(self.sizes.group)
        for i in T.unroll(2):
            at: T.let[T.int32] = first + i * 8 + lane // 4
            if at < B[block, 1] * group:
                token: T.let[T.int32] = B[block, 0] + at // group
                h: T.let[T.int32] = kv_head * group + at % group
                if T.And(warp % self.sizes.parts == 0, lane % 4 == 0):
                    PART[token, h, share, 0] = regs.best[i]
                    PART[token, h, share, 1] = regs.total[i * 2]
                for column in T.unroll(self.sizes.blocks):
                    if self.tile.is_there(warp % self.sizes.parts, column):
                        for j in T.vectorized(2):
                            PART[token, h, share, STATE + self.column(warp, column, lane) + j] = (
                                regs.sums[column * 4 + i * 2 + j]
                            )

    def column(self, warp: Expr, block: Expr, lane: Expr) -> Expr:
        """The first of two elements that a thread has of a block of a warp."""
        return (warp % self.sizes.parts * self.sizes.blocks + block) * 8 + lane % 4 * 2

    @T.inline
    def end(self, O, B, block, kv_head, first, MEM, lane, warp, whole):
        """Writes the rows of a tile."""
        group, width = T.meta_var(self.sizes.group), T.meta_var(self.sizes.head_dim)
        for i in T.unroll(2):
            at: T.let[T.int32] = first + i * 8 + lane // 4
            if at < B[block, 1] * group:
                token: T.let[T.int32] = B[block, 0] + at // group
                start: T.let[T.int32] = (kv_head * group + at % group) * width
                for column in T.unroll(self.sizes.blocks):
                    if self.tile.is_there(warp % self.sizes.parts, column):
                        for j in T.vectorized(2):
                            O[token, start + self.column(warp, column, lane) + j] = (
                                self.tile.whole_sum(
                                    MEM, column * 4 + i * 2 + j, warp * WARP + lane, whole
                                )
                                / whole.total[i * 2]
                            )


@cache
def join(heads: int, head_dim: int, has_sinks: bool = False) -> PrimFunc:
    """Kernel of (place, sinks, shares, out): what `attention` leaves to do in small steps."""
    threads = block_size(head_dim)
    turns = -(-head_dim // threads)

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
        thread = T.thread_id([threads])
        state = T.alloc_buffer((STATE,), "float32", scope="local")
        sums = T.alloc_buffer((turns,), "float32", scope="local")
        factors = T.alloc_buffer((3,), "float32", scope="local")
        if m <= FEW:
            state[0] = T.float32(LOWEST)
            state[1] = T.float32(0)
            if has_sinks:
                state[0] = SINKS[h] * T.float32(LOG2E)
                state[1] = T.float32(UNIT)
            for i in T.unroll(turns):
                sums[i] = T.float32(0)
            for share in T.serial(T.min(AT[row] // SPLIT + 1, SHARES)):
                # As `Tile.fold`.
                factors[2] = T.max(state[0], PART[row, h, share, 0])
                factors[0] = T.exp2(state[0] - factors[2])
                factors[1] = T.exp2(PART[row, h, share, 0] - factors[2])
                state[0] = factors[2]
                T.ptx[_FMA](state[1], state[1], factors[0], PART[row, h, share, 1] * factors[1])
                for i in T.unroll(turns):
                    if i * threads + thread < head_dim:
                        T.ptx[_FMA](
                            *(sums[i], sums[i], factors[0]),
                            PART[row, h, share, STATE + i * threads + thread] * factors[1],
                        )
            for i in T.unroll(turns):
                if i * threads + thread < head_dim:
                    O[row, h * head_dim + i * threads + thread] = sums[i] / state[1]

    return without(join_shares, *(() if has_sinks else ("SINKS",)))
