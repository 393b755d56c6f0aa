"""Products of many rows on AVX-512 VNNI: weights are unpacked once for all rows.

    for turn in turns of TURN rows:
      P = X of the turn, in the order in which it is read                 parallel
      for task in some column blocks times a row panel of the turn:       parallel; threads claim
        S = 0                                                             tasks (`claims.py`)
        for part in parts of the columns:
          for block in column blocks of the task:
            for k_block in k blocks of the part:
              U, F = bytes of W[block, k_block]; its scales and minima
              for row_block in row blocks of the panel:
                sums = S[block, row_block]                                in registers
                for g in groups of the k block:
                  sums += a group, as in `integer_product.py`             the same bits
                S[block, row_block] = sums
        Y[panel, blocks] (+)= S

X, W, Y  see `integer_matmul.py`
P  int32 [panels, k blocks, row blocks, groups, ROWS, words]   of each row and group: the words of
                                           its planes, SCALE, and SCALED_SUM or, for weights with
                                           an offset, what it takes off
U  int32 [groups, quads, 32]               weights, a byte each. U and F stay in the first cache,
F  float32 [2, groups, 32]                 a part of a row panel of P in the second one
S  float32 [blocks, rows of a panel, 32]   sums so far
claims  int32 [tasks + 1]                  which tasks threads have claimed

The last row block ends with the last row. It may have rows of the one before, which it does not
write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.activation import SCALE, SCALED_SUM, SUM, description
from mlc_llm.kernels.cpu.adapter_asks import Turn, ask_for_factors
from mlc_llm.kernels.cpu.claims import CLAIMED, SEEN, STATE, claim, clear_claims
from mlc_llm.kernels.cpu.dot import BYTES, multiply_bytes, weight_values
from mlc_llm.kernels.cpu.prefetch import align_stack, prefetch
from mlc_llm.kernels.cpu.row_block import LINE_WORDS, add_group, clear, put
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

LEAST_ROWS = 6
"""Fewer rows do not pay for unpacking (measured with Zen 5 on two threads)."""
ROWS = 4
"""Rows of a row block. Eight would not leave registers for their float32 sums."""
TURN = 512
"""Rows that P holds at once."""
PANEL_BYTES = 400 * 2**10
"""How much of P should stay in the second cache."""
K_BLOCK, PART = 384, 2048
"""Columns of a k block, at most if a span is no more, and of a part."""
Words: TypeAlias = Callable[[Index, Index, Index], Expr]
"""Words of a k block of a row block: by group, row and number."""
LANES, VECTORS = 16, BLOCK // 16


class UnpackedProduct:
    """A product of both planes of activations, or of the high plane alone, and some column
    blocks."""

    def __init__(
        self, blocks: range, k: int, fmt: WeightFormat, planes: int, sums: int, accumulate: bool
    ) -> None:
        self.first_block, count = blocks.start, len(blocks)
        self.fmt, self.planes, self.accumulate = fmt, planes, accumulate
        self.is_high = planes < sums
        self.groups, self.quads = k // fmt.group, fmt.group // 4
        spans = self.groups // fmt.span
        self.k_blocks = -(-spans // max(1, K_BLOCK // (fmt.span * fmt.group)))
        self.k_groups = -(-spans // self.k_blocks) * fmt.span
        self.part = max(1, PART // fmt.group // self.k_groups)
        self.scale = planes * self.quads
        self.words = self.scale + 2
        row_bytes = min(k, PART) // fmt.group * 4 * self.words
        self.panel = min(PANEL_BYTES // row_bytes, TURN) // ROWS
        self.task_blocks = next(
            c for c in (4, 2, 1) if c == 1 or (count % c == 0 and count >= 16 * c)
        )
        self.column_tasks = count // self.task_blocks
        self.most_tasks = self.column_tasks * -(-TURN // (ROWS * self.panel))

    @T.inline
    def multiply(self, X, W, Y, start, count, asked):
        """Rows `start` to `start + count`, which are LEAST_ROWS or more."""
        claims = T.alloc_buffer((self.most_tasks + 1,), "int32")
        for turn in T.serial(T.ceildiv(count, TURN)):
            P = T.alloc_buffer(
                (
                    T.ceildiv(T.min(X.shape[0], TURN), ROWS * self.panel),
                    *(self.k_blocks, self.panel, self.k_groups, ROWS, self.words),
                ),
                "int32",
            )
            first = T.meta_var(start + turn * TURN)
            row_blocks: T.let[T.int32] = T.ceildiv(T.min(TURN, count - turn * TURN), ROWS)
            for b in T.parallel(row_blocks):
                self.pack(X, P, b, T.min(first + b * ROWS, start + count - ROWS))
            self.do_all(P, W, Y, claims, first, row_blocks, start + count - ROWS, asked)

    @T.inline
    def do_all(self, P, W, Y, claims, first, row_blocks, last, asked):
        """All tasks of a turn that begins with row `first`. In its first turn a thread does tasks
        until none is free; its other turns find nothing."""
        panels: T.let[T.int32] = T.ceildiv(row_blocks, self.panel)
        tasks: T.let[T.int32] = self.column_tasks * panels
        clear_claims(claims, tasks)
        for at in T.parallel(tasks):
            align_stack()
            if claims[tasks] == 0:
                state = T.alloc_buffer((STATE,), "int32")
                U = T.alloc_buffer((self.k_groups, self.quads, BLOCK), "int32")
                F = T.alloc_buffer((2, self.k_groups, BLOCK), "float32")
                S = T.alloc_buffer((self.task_blocks, self.panel * ROWS, BLOCK), "float32")
                state[SEEN] = 0
                claim(claims, state, at, tasks)
                while state[CLAIMED] < tasks:
                    panel: T.let[T.int32] = state[CLAIMED] % panels
                    column: T.let[T.int32] = state[CLAIMED] // panels * self.task_blocks
                    self.add_panel(
                        *(P, W, Y, U, F, S, self.first_block + column, panel),
                        T.min(self.panel, row_blocks - panel * self.panel),
                        *(first + panel * self.panel * ROWS, last, asked),
                    )
                    claim(claims, state, at, tasks)
                claims[tasks] = 1

    @T.inline
    def pack(self, X, P, b, row):
        """Row block b of P, which begins with that row of X."""
        panel, block = T.meta_var((b // self.panel, b % self.panel))
        for g in T.serial(self.groups):
            k_block, i = T.meta_var((g // self.k_groups, g % self.k_groups))
            for r in T.unroll(ROWS):
                x = T.meta_var(description(X, row + r, g, self.fmt.group, self.is_high))
                planes = T.meta_var(lanes_at(0, self.scale))
                P[panel, k_block, block, i, r, planes] = X[row + r, g, planes]
                P[panel, k_block, block, i, r, self.scale] = x(SCALE)
                P[panel, k_block, block, i, r, self.scale + 1] = self.second(x)

    def second(self, x: Callable[[int], Expr]) -> Expr:
        """What stands behind SCALE in P."""
        return x(SCALED_SUM) if self.fmt.has_minimum else x(SUM) * T.int32(-self.fmt.offset)

    @T.inline
    def add_panel(self, P, W, Y, U, F, S, first_block, panel, blocks, row, last, asked):
        """All columns of a panel of row blocks, for the column blocks from `first_block` on."""
        block: T.let[T.int32] = first_block
        size: T.let[T.int32] = blocks
        for part in T.serial(-(-self.k_blocks // self.part)):
            for c in T.serial(self.task_blocks):
                for i in T.serial(T.min(self.part, self.k_blocks - part * self.part)):
                    k_block = T.meta_var(part * self.part + i)
                    for g in T.serial(self.count(k_block)):
                        self.unpack(W, U, F, block + c, k_block * self.k_groups + g, g)
                    for b in T.serial(size):
                        self.ask(W, block + c, k_block + 1, b, size)
                        self.add_row_block(
                            *(P, U, F, S, Y, block, c, panel, b, k_block),
                            *(row + b * ROWS, last),
                            None if asked is None else Turn(asked, block + c, b, size),
                        )

    def count(self, k_block: Index) -> Expr:
        """Groups of a k block."""
        return T.min(self.k_groups, self.groups - k_block * self.k_groups)

    @T.inline
    def unpack(self, W, U, F, block, g, at):
        """Group g of a column block becomes bytes, scales and minima number `at`."""
        for v in T.unroll(VECTORS):
            lanes = T.meta_var(lanes_at(v * LANES, LANES))
            for j in T.unroll(self.fmt.low_words):
                for part in T.unroll(self.fmt.parts):
                    U[at, j + part * self.fmt.low_words, lanes] = self.values(
                        W, block, g, v, j, part
                    )
            F[0, at, lanes] = scale_at(self.fmt, W, block, g, v, LANES)
            if self.fmt.has_minimum:
                F[1, at, lanes] = minimum_at(self.fmt, W, block, g, v, LANES)

    def values(
        self, W: Buffer, block: Index, group: Index, vector: Index, j: Index, part: Index
    ) -> Expr:
        """A vector of weights, a byte each."""
        words = weight_words(self.fmt, W, block, group, vector * LANES, LANES)
        return weight_values(self.fmt, words, j, part, LANES, BYTES)

    @T.inline
    def ask(self, W, block, k_block, b, size):
        """Asks the memory for a share of the weights that are unpacked next."""
        lines = T.meta_var(-(-self.k_groups // self.fmt.span * self.fmt.stride // LINE_WORDS))
        share: T.let[T.int32] = T.ceildiv(lines, size)
        for i in T.serial(share):
            T.evaluate(
                prefetch(
                    W,
                    block,
                    k_block * (self.k_groups // self.fmt.span),
                    (b * share + i) * LINE_WORDS,
                )
            )

    @T.inline
    def add_row_block(self, P, U, F, S, Y, block, c, panel, b, k_block, row, last, turn):
        """One k block of a row block, which begins with that row of Y, or with row `last` if that
        is an earlier one. The sums of the last k block go to Y."""
        sums = T.alloc_buffer((ROWS, VECTORS, LANES), "float32")
        high = T.alloc_buffer((ROWS, VECTORS, LANES), "int32")
        low = T.alloc_buffer((ROWS, VECTORS, LANES), "int32")
        lane = T.meta_var(lanes_at(0, LANES))
        x = T.meta_var(lambda g, r, word: P[panel, k_block, b, g, r, word])
        if k_block == 0:
            clear(sums, ROWS, LANES)
        else:
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    sums[r, v, lane] = S[c, b * ROWS + r, lanes_at(v * LANES, LANES)]
        for g in T.serial(self.count(k_block)):
            if turn is not None:
                ask_for_factors(turn, k_block * self.k_groups + g, self.groups)
            self.multiply_group(U, high, low, g, x)
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    sums[r, v, lane] = self.added(
                        sums[r, v, lane],
                        self.joined(high[r, v, lane], low[r, v, lane]),
                        F,
                        g,
                        v,
                        r,
                        x,
                    )
        if k_block == self.k_blocks - 1:
            self.store(Y, sums, block + c, row, last)
        else:
            for r in T.unroll(ROWS):
                for v in T.unroll(VECTORS):
                    S[c, b * ROWS + r, lanes_at(v * LANES, LANES)] = sums[r, v, lane]

    @T.inline
    def multiply_group(self, U, high, low, g, x):
        """The integer sums of a group. Both planes of a word follow each other: with one plane
        behind the other, weights stayed in registers, and sums went to the stack for them."""
        lane = T.meta_var(lanes_at(0, LANES))
        for r in T.unroll(ROWS):
            for v in T.unroll(VECTORS):
                low[r, v, lane] = splat(self.begin(x, g, r), LANES)
                if self.planes == 2:
                    high[r, v, lane] = splat(T.int32(0), LANES)
        for q in T.unroll(self.quads):
            for r in T.unroll(ROWS):
                if self.planes == 2:
                    for v in T.unroll(VECTORS):
                        high[r, v, lane] = multiply_bytes(
                            high[r, v, lane], U[g, q, lanes_at(v * LANES, LANES)], x(g, r, q)
                        )
                for v in T.unroll(VECTORS):
                    low[r, v, lane] = multiply_bytes(
                        low[r, v, lane],
                        U[g, q, lanes_at(v * LANES, LANES)],
                        x(g, r, (self.planes - 1) * self.quads + q),
                    )

    def begin(self, x: Words, g: Index, r: Index) -> Expr:
        """What the sum of the last plane begins with: what an offset takes off."""
        return T.int32(0) if self.fmt.has_minimum else x(g, r, self.scale + 1)

    def joined(self, high: Expr, low: Expr) -> Expr:
        """The integer sum of all planes."""
        if self.planes == 1:
            return low
        return T.shift_left(high, splat(T.int32(8), LANES)) + low

    def added(
        self, sums: Expr, whole: Expr, F: Buffer, g: Index, v: Index, r: Index, x: Words
    ) -> Expr:
        """`sums` plus a group, scaled."""
        lanes = lanes_at(v * LANES, LANES)
        minimum = F[1, g, lanes] if self.fmt.has_minimum else None
        return add_group(
            *(sums, whole, F[0, g, lanes], minimum),
            *(x(g, r, self.scale), x(g, r, self.scale + 1), LANES),
        )

    @T.inline
    def store(self, Y, sums, block, row, last):
        """Writes the rows of a row block that the one before has not written."""
        for r in T.unroll(ROWS):
            if T.min(row, last) + r >= row:
                for v in T.unroll(VECTORS):
                    put(
                        *(Y, T.min(row, last) + r, block * BLOCK + v * LANES),
                        *(sums[r, v, lanes_at(0, LANES)], LANES, self.accumulate),
                    )
