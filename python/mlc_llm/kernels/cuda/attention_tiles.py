"""What a warp of `attention` does: 16 rows of queries against a KV split after the other.

    scores = (high + low planes of the queries) . keys       tensor cores, sums of float32
    weights = 2^(scores - best) * 2^14, as two planes        so that small ones keep their bits
    sums = sums * 2^(old best - best) + weights . values     tensor cores
    total = total * ...               + weights . ones       in the same way

A row is a token and one of the heads that share a KV head. Nothing that is computed for a row
depends on other rows of the tile: a split that a row does not see changes no bit of it.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cuda.attention_sizes import (
    COLUMNS,
    LOG2E,
    LOWEST,
    SPLIT,
    UNIT,
    Registers,
    Sizes,
)
from mlc_llm.kernels.cuda.halves import exponent_of, high, inverse_scale, low, scale_bits, two
from mlc_llm.kernels.cuda.tensor_cores import copy, load_matrices, load_turned, mma, words_at
from mlc_llm.kernels.cuda.threads import WARP
from mlc_llm.kernels.types import Buffer, Expr

_FMA = "fma.rn.f32"
_ONES = 0x3C003C00


class Tile:
    """Statements of `attention`."""

    def __init__(self, sizes: Sizes, cap: float | None) -> None:
        self.sizes, self.cap = sizes, cap
        self.pairs = -(-sizes.steps * 8 // WARP)

    @T.inline
    def clear(self, regs):
        """Nothing is seen yet."""
        for i in T.unroll(2):
            regs.best[i] = T.float32(LOWEST)
        for i in T.unroll(4):
            regs.total[i] = T.float32(0)
        for i in T.unroll(self.sizes.blocks * 4):
            regs.sums[i] = T.float32(0)

    @T.inline
    def put_query(self, Q, token, column, is_there, MEM, row, rows, lane):
        """A row of queries as two planes of float16 and a scale, as `planes.py` says.

        column: of its first element. MEM: high plane, low plane, scales, of so many rows."""
        stride = T.meta_var(self.sizes.stride)
        v = T.alloc_buffer((2 * self.pairs,), "float32", scope="local")
        top = T.alloc_buffer((1,), "float32", scope="local")
        exponent = T.alloc_buffer((1,), "int32", scope="local")
        top[0] = T.float32(0)
        for j in T.unroll(self.pairs):
            for i in T.unroll(2):
                v[2 * j + i] = T.float32(0)
                if T.And(is_there, (j * WARP + lane) * 2 < self.sizes.head_dim):
                    v[2 * j + i] = Q[token, column + (j * WARP + lane) * 2 + i]
                top[0] = T.max(top[0], T.abs(v[2 * j + i]))
        top[0] = T.cuda.warp_max(top[0])
        exponent[0] = exponent_of(top[0])
        if lane == 0:
            MEM[2 * rows * stride + row] = scale_bits(exponent[0])
        top[0] = inverse_scale(exponent[0])
        for j in T.unroll(self.pairs):
            if j * WARP + lane < self.sizes.steps * 8:
                for i in T.unroll(2):
                    v[2 * j + i] = v[2 * j + i] * top[0]
                MEM[row * stride + j * WARP + lane] = two(high(v[2 * j]), high(v[2 * j + 1]))
                MEM[(rows + row) * stride + j * WARP + lane] = two(low(v[2 * j]), low(v[2 * j + 1]))

    @T.inline
    def take_queries(self, MEM, row, rows, lane, regs):
        """Reads the scales of a tile that begins with `row`, and its queries if they are kept."""
        for i in T.unroll(2):
            regs.scales[i] = T.reinterpret(
                MEM[2 * rows * self.sizes.stride + row + i * 8 + lane // 4], dtype="float32"
            )
        if self.sizes.are_kept:
            for step in T.unroll(self.sizes.steps):
                self.load_queries(MEM, row, rows, step, lane, regs, step * 8)

    @T.inline
    def load_queries(self, MEM, row, rows, step, lane, regs, at):
        """regs.queries[at:at + 8]: both planes of 16 elements."""
        for plane in T.unroll(2):
            load_matrices(
                *(regs.queries, at + plane * 4),
                words_at(
                    MEM,
                    (plane * rows + row + lane % 16) * self.sizes.stride
                    + step * 8
                    + lane // 16 * 4,
                ),
            )

    @T.inline
    def zero_ends(self, MEM, start, count, thread, threads):
        """Keys have zeros behind their last element, where the last step reads them."""
        if self.sizes.head_dim % 16 != 0:
            for part in T.serial(T.ceildiv(count * SPLIT * 4, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < count * SPLIT * 4:
                    MEM[
                        start
                        + i // (SPLIT * 4) * self.sizes.stage
                        + i // 4 % SPLIT * self.sizes.stride
                        + self.sizes.head_dim // 2
                        + i % 4
                    ] = T.uint32(0)

    @T.inline
    def copy_split(self, seen, split, last, MEM, start, thread, threads):
        """Begins to copy keys and values; zeros behind the last place that is seen."""
        chunks = T.meta_var(self.sizes.head_dim // 8)
        page: T.let[T.int64] = T.cast(seen.page_ids[seen.first_page + split], "int64")
        for part in T.serial(T.ceildiv(2 * SPLIT * chunks, threads)):
            i: T.let[T.int32] = part * threads + thread
            if i < 2 * SPLIT * chunks:
                kind: T.let[T.int32] = i // (SPLIT * chunks)
                row: T.let[T.int32] = i // chunks % SPLIT
                target: T.let[T.int32] = (
                    start + (kind * SPLIT + row) * self.sizes.stride + i % chunks * 4
                )
                is_seen: T.let[T.bool] = split * SPLIT + row <= last
                if self.sizes.has_bytes:
                    self.widen(seen, page, kind, row, i % chunks * 8, is_seen, MEM, target)
                else:
                    copy(
                        words_at(MEM, target),
                        seen.pages.ptr_to([page, seen.kv_head, kind, i % (SPLIT * chunks) * 8]),
                        is_seen,
                    )

    @T.inline
    def widen(self, seen, page, kind, row, first, is_seen, MEM, target):
        """Puts eight elements of a page of bytes into shared memory, each the nearest float16 of
        its whole number times its scale."""
        q = T.alloc_buffer((8,), "int8", scope="local")
        x = T.alloc_buffer((8,), "float32", scope="local")
        for j in T.unroll(8):
            x[j] = T.float32(0)
        if is_seen:
            for half in T.unroll(2):
                for j in T.vectorized(4):
                    q[half * 4 + j] = seen.pages[
                        page, seen.kv_head, kind, row * self.sizes.head_dim + first + half * 4 + j
                    ]
            for j in T.unroll(8):
                x[j] = T.cast(q[j], "float32") * seen.scale(
                    page, kind, row, first, self.sizes.head_dim
                )
        for j in T.unroll(4):
            MEM[target + j] = two(high(x[2 * j]), high(x[2 * j + 1]))

    @T.inline
    def attend(self, seen, split, MEM, queries, rows, start, part, lane, regs):
        """Folds a split that was copied to `start` into the sums. queries: the tile's first row."""
        scores = T.alloc_buffer((8,), "float32", scope="local")
        weights = T.alloc_buffer((8,), "uint32", scope="local")
        factors = T.alloc_buffer((2,), "float32", scope="local")
        self.find_scores(MEM, queries, rows, start, lane, regs, scores)
        self.weigh(seen, split, lane, regs, scores, factors)
        for block in T.unroll(2):
            for i in T.unroll(2):
                weights[block * 2 + i] = two(
                    high(scores[block * 4 + i * 2]), high(scores[block * 4 + i * 2 + 1])
                )
                weights[4 + block * 2 + i] = two(
                    low(scores[block * 4 + i * 2]), low(scores[block * 4 + i * 2 + 1])
                )
        self.add_values(MEM, start + SPLIT * self.sizes.stride, part, lane, regs, weights, factors)

    @T.inline
    def find_scores(self, MEM, queries, rows, start, lane, regs, scores):
        """scores: of rows g and g + 8 with places 2 t, 2 t + 1, and those 8 behind them."""
        keys = T.alloc_buffer((4,), "uint32", scope="local")
        for i in T.unroll(8):
            scores[i] = T.float32(0)
        for step in T.unroll(self.sizes.steps):
            at = T.meta_var(step * 8 if self.sizes.are_kept else 0)
            load_matrices(
                *(keys, 0),
                words_at(
                    MEM,
                    start
                    + (lane // 16 * 8 + lane % 8) * self.sizes.stride
                    + step * 8
                    + lane // 8 % 2 * 4,
                ),
            )
            if not self.sizes.are_kept:
                self.load_queries(MEM, queries, rows, step, lane, regs, 0)
            for plane in T.unroll(2):
                for block in T.unroll(2):
                    mma(scores, block * 4, regs.queries, at + plane * 4, keys, block * 2)

    @T.inline
    def weigh(self, seen, split, lane, regs, scores, factors):
        """Makes weights of scores, and finds what sums so far are multiplied by."""
        best = T.alloc_buffer((2,), "float32", scope="local")
        for r in T.unroll(2):
            best[r] = T.float32(LOWEST)
            for i in T.unroll(4):
                at = T.meta_var(i // 2 * 4 + r * 2 + i % 2)
                t = T.meta_var(split * SPLIT + i // 2 * 8 + lane % 4 * 2 + i % 2)
                scores[at] = scores[at] * regs.scales[r]
                if self.cap is not None:
                    scores[at] = T.tanh(scores[at] * T.float32(1 / (LOG2E * self.cap))) * T.float32(
                        LOG2E * self.cap
                    )
                if T.Not(seen.sees(t, regs.begin[r], regs.place[r])):
                    scores[at] = T.float32(LOWEST)
                best[r] = T.max(best[r], scores[at])
            best[r] = T.max(T.cuda.warp_max(best[r], 4), regs.best[r])
            factors[r] = T.exp2(regs.best[r] - best[r])
            regs.best[r] = best[r]
            for i in T.unroll(4):
                at = T.meta_var(i // 2 * 4 + r * 2 + i % 2)
                t = T.meta_var(split * SPLIT + i // 2 * 8 + lane % 4 * 2 + i % 2)
                scores[at] = T.exp2(scores[at] - best[r]) * T.float32(UNIT)
                if T.Not(seen.sees(t, regs.begin[r], regs.place[r])):
                    scores[at] = T.float32(0)

    @T.inline
    def add_values(self, MEM, start, part, lane, regs, weights, factors):
        """sums and total, with the values of a split."""
        values = T.alloc_buffer((4,), "uint32", scope="local")
        for i in T.unroll(4):
            regs.total[i] = regs.total[i] * factors[i // 2]
            values[i] = T.uint32(_ONES)
        for plane in T.unroll(2):
            mma(regs.total, 0, weights, plane * 4, values, 0)
        for pair in T.unroll(self.sizes.blocks // 2):
            if self.is_there(part, pair * 2):
                load_turned(
                    *(values, 0),
                    words_at(
                        MEM,
                        start
                        + lane % 16 * self.sizes.stride
                        + (part * self.sizes.blocks + pair * 2 + lane // 16) * (COLUMNS // 2),
                    ),
                )
                for block in T.unroll(2):
                    at = T.meta_var((pair * 2 + block) * 4)
                    for i in T.unroll(4):
                        regs.sums[at + i] = regs.sums[at + i] * factors[i // 2]
                    for plane in T.unroll(2):
                        mma(regs.sums, at, weights, plane * 4, values, block * 2)

    def is_there(self, part: Expr, block: Expr) -> Expr:
        """Whether a block of a warp has elements of the head."""
        return T.Not((part * self.sizes.blocks + block) * COLUMNS >= self.sizes.head_dim)

    @T.inline
    def clear_whole(self, MEM, thread, whole):
        """No share was folded yet. Where registers hold queries, shared memory holds the sums of
        all shares in their place; each thread reads its own ones alone."""
        for i in T.unroll(2):
            whole.best[i] = T.float32(LOWEST)
            whole.total[i * 2] = T.float32(0)
        for i in T.unroll(self.sizes.blocks * 4):
            if self.sizes.are_kept:
                MEM[self.place_of(i, thread)] = T.uint32(0)
            else:
                whole.sums[i] = T.float32(0)

    def place_of(self, i: Expr, thread: Expr) -> Expr:
        """Of a sum of all shares in shared memory."""
        return i * (self.sizes.warps * WARP) + thread

    def whole_sum(self, MEM: Buffer, i: Expr, thread: Expr, whole: Registers) -> Expr:
        """A sum of all shares."""
        if self.sizes.are_kept:
            return T.reinterpret(MEM[self.place_of(i, thread)], dtype="float32")
        return whole.sums[i]

    @T.inline
    def fold(self, MEM, thread, whole, regs):
        """Adds a share. The instruction is named, so that all kernels round alike."""
        best = T.alloc_buffer((1,), "float32", scope="local")
        factors = T.alloc_buffer((2,), "float32", scope="local")
        x = T.alloc_buffer((1,), "float32", scope="local")
        for r in T.unroll(2):
            best[0] = T.max(whole.best[r], regs.best[r])
            factors[0] = T.exp2(whole.best[r] - best[0])
            factors[1] = T.exp2(regs.best[r] - best[0])
            whole.best[r] = best[0]
            T.ptx[_FMA](
                *(whole.total[r * 2], whole.total[r * 2], factors[0]),
                regs.total[r * 2] * factors[1],
            )
            for i in T.unroll(self.sizes.blocks * 2):
                at = T.meta_var(i // 2 * 4 + r * 2 + i % 2)
                x[0] = self.whole_sum(MEM, at, thread, whole)
                T.ptx[_FMA](x[0], x[0], factors[0], regs.sums[at] * factors[1])
                if self.sizes.are_kept:
                    MEM[self.place_of(at, thread)] = T.reinterpret(x[0], dtype="uint32")
                else:
                    whole.sums[at] = x[0]
