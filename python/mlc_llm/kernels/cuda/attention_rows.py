"""The rows of a block of `attention`, and how its warps share the splits."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cuda.attention_sizes import LOG2E, SHARES, SPLIT, STATE, TILE, UNIT, Sizes
from mlc_llm.kernels.cuda.attention_tiles import Tile
from mlc_llm.kernels.cuda.tensor_cores import commit, wait
from mlc_llm.kernels.cuda.threads import WARP
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.record import record


@record(eq=False)
class Given:
    """The tables of all tokens, and what a block of threads computes."""

    queries: Buffer
    places: Buffer
    blocks: Buffer
    block: Expr
    kv_head: Expr


class Rows:
    """Statements of `attention`: the rows of a block, and how the splits are shared by warps.

    Row r of a query block is its token r // group, and the head r % group of its KV head."""

    def __init__(
        self, sizes: Sizes, cap: float | None, has_sinks: bool, sink_column: int = 0
    ) -> None:
        """sink_column: where a token's queries for the first tokens of its sequence begin; 0: it
        has none."""
        self.sizes, self.has_sinks, self.sink_column = sizes, has_sinks, sink_column
        self.tile = Tile(sizes, cap)
        self.kept = 8 * (sizes.steps if sizes.are_kept else 1)
        self.threads = sizes.warps * WARP

    @T.inline
    def few(self, given, PART, own, seen, MEM, lane, warp, regs):
        """Each warp has a share of the rows of a tile, tile by tile."""
        sizes, B, block = T.meta_var(self.sizes), T.meta_var(given.blocks), T.meta_var(given.block)
        for turn in T.serial(T.ceildiv(B[block, 1] * sizes.group, TILE)):
            first: T.let[T.int32] = turn * TILE
            self.tile.clear(regs)
            if self.sink_column > 0:
                if T.And(own == 0, seen.window[1] > 0):
                    self.see_sinks(
                        *(given, first, TILE, 0, seen, MEM, lane, warp),
                        *(warp // sizes.parts == 0, regs),
                    )
            self.put_queries(given, first, TILE, 0, MEM, lane, warp)
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
            self.tile.clear(regs)
            if self.sink_column > 0:
                if seen.window[1] > 0:
                    self.see_sinks(
                        given, first, sizes.rows, mine, seen, MEM, lane, warp, T.bool(True), regs
                    )
            self.put_queries(given, first, sizes.rows, 0, MEM, lane, warp)
            self.take(given.places, B, block, first, mine, sizes.rows, seen, MEM, lane, regs)
            self.begin(SINKS, given.kv_head, first + mine, MEM, lane, warp, whole)
            self.attend_all(given.places, B, block, first, seen, MEM, lane, warp, regs, whole)
            self.end(O, B, block, given.kv_head, first + mine, MEM, lane, warp, whole)

    @T.inline
    def see_sinks(self, given, first, count, mine, seen, MEM, lane, warp, attends, regs):
        """The sums of the splits with first tokens, which all belong to the first share. All warps
        copy each of them; those that `attends` says fold them, in order."""
        sizes = T.meta_var(self.sizes)
        last: T.let[T.int32] = given.places[
            self.last_token(given.blocks, given.block, first, count)
        ]
        self.put_queries(given, first, count, self.sink_column, MEM, lane, warp)
        self.take(
            given.places, given.blocks, given.block, first, mine, count, seen, MEM, lane, regs
        )
        for split in T.serial(T.min(seen.sink_splits(), last // SPLIT + 1)):
            self.tile.copy_split(
                *(seen, split, last, MEM, sizes.queries(count), warp * WARP + lane, self.threads)
            )
            commit()
            wait(0)
            T.cuda.cta_sync()
            if attends:
                self.tile.attend(
                    *(seen, split, MEM, mine, count, sizes.queries(count)),
                    *(warp % sizes.parts, lane, regs),
                )
            T.cuda.cta_sync()

    @T.inline
    def put_queries(self, given, first, count, start, MEM, lane, warp):
        """The queries of rows from `first` on, for all warps. start: their first column."""
        group, width = T.meta_var(self.sizes.group), T.meta_var(self.sizes.head_dim)
        B, block = T.meta_var(given.blocks), T.meta_var(given.block)
        T.cuda.cta_sync()
        for turn in T.serial(T.ceildiv(count, self.sizes.warps)):
            row: T.let[T.int32] = turn * self.sizes.warps + warp
            if row < count:
                at: T.let[T.int32] = first + row
                self.tile.put_query(
                    given.queries, B[block, 0] + at // group,
                    start + (given.kv_head * group + at % group) * width,
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
        """Adds to the sums those of share `share` + the number of the warp's tile, of which each
        has copies of its own."""
        sizes = T.meta_var(self.sizes)
        together = T.meta_var(sizes.parts * WARP)
        start: T.let[T.int32] = sizes.queries(TILE) + warp // sizes.parts * 2 * sizes.stage
        own: T.let[T.int32] = share + warp // sizes.parts
        low: T.let[T.int32] = seen.begin(AT, B[block, 0] + first // sizes.group)
        last: T.let[T.int32] = AT[self.last_token(B, block, first, TILE)]
        thread: T.let[T.int32] = warp % sizes.parts * WARP + lane
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
        """The same of all shares; all warps of the block read the same copies."""
        sizes = T.meta_var(self.sizes)
        start, mine = T.meta_var(sizes.queries(sizes.rows)), T.meta_var(warp // sizes.parts * TILE)
        low: T.let[T.int32] = seen.begin(AT, B[block, 0] + first // sizes.group)
        last: T.let[T.int32] = AT[self.last_token(B, block, first, sizes.rows)]
        thread: T.let[T.int32] = warp * WARP + lane
        count: T.let[T.int32] = last // SPLIT + 1
        now = T.alloc_buffer((2,), "int32", scope="local")
        now[0] = 0
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
