"""What a task of `unpacked_matmul.py` does: a row panel times some column blocks.

The sums of a row block stay in registers, of which AVX-512 has 32. With 16, the float32 sums go to
the stack while a group is multiplied, and both planes have one integer sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.adapter_asks import ask_for_factors
from mlc_llm.kernels.cpu.dot import BYTES, PAIR, multiply_words, weight_values
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.row_block import LINE_WORDS, Turn, add_group, clear, put
from mlc_llm.kernels.cpu.row_panels import RowPanels
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

Words: TypeAlias = Callable[[Index, Index, Index], Expr]
"""Words of a k block of a row block: by group, row and number."""
WIDE = 16
"""Lanes of a machine with 32 registers."""


class UnpackedProduct:
    """The product of a row panel and some column blocks, by both planes of activations or by the
    high one alone."""

    def __init__(
        self, blocks: range, planes: int, panels: RowPanels, isa: Isa, accumulate: bool
    ) -> None:
        self.first_block, count = blocks.start, len(blocks)
        self.fmt, self.planes, self.accumulate = panels.fmt, planes, accumulate
        self.isa, self.rows, self.lanes = isa, panels.rows, isa.lanes
        self.vectors = BLOCK // isa.lanes
        self.pairs = isa.sums == 1
        self.groups, self.quads, self.part = panels.groups, panels.quads, panels.part
        self.k_blocks, self.k_groups = panels.k_blocks, panels.k_groups
        self.scale, self.last_plane = panels.scale(planes), (planes - 1) * panels.quads
        self.words = self.quads * (2 if self.pairs else 1)
        self.task_blocks = next(
            c for c in (4, 2, 1) if c == 1 or (count % c == 0 and count >= 16 * c)
        )
        self.column_tasks = count // self.task_blocks

    @T.inline
    def add_panel(self, P, W, Y, U, F, S, column, panel, blocks, row, last, asked):
        """All columns of a panel of row blocks, for the column blocks of task `column`."""
        block: T.let[T.int32] = self.first_block + column * self.task_blocks
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
                            *(row + b * self.rows, last, Turn(block + c, b, size), asked),
                        )

    def count(self, k_block: Index) -> Expr:
        """Groups of a k block."""
        return T.min(self.k_groups, self.groups - k_block * self.k_groups)

    @T.inline
    def unpack(self, W, U, F, block, g, at):
        """Group g of a column block becomes values, scales and minima number `at`."""
        for v in T.unroll(self.vectors):
            lanes = T.meta_var(self.lanes_of(v))
            for j in T.unroll(self.fmt.low_words):
                for part in T.unroll(self.fmt.parts):
                    for odd in T.unroll(self.words // self.quads):
                        U[at, odd * self.quads + part * self.fmt.low_words + j, lanes] = (
                            self.values(W, block, g, v, j, part, odd)
                        )
            F[0, at, lanes] = scale_at(self.fmt, W, block, g, v, self.lanes)
            if self.fmt.has_minimum:
                F[1, at, lanes] = minimum_at(self.fmt, W, block, g, v, self.lanes)

    def lanes_of(self, v: Index) -> Expr:
        """Vector v of a column block."""
        return lanes_at(v * self.lanes, self.lanes)

    def values(
        self, W: Buffer, block: Index, group: Index, v: Index, j: Index, part: Index, odd: Index
    ) -> Expr:
        """A vector of weights: all bytes of a word, or as 16 bits its even or its odd ones."""
        words = weight_words(self.fmt, W, block, group, v * self.lanes, self.lanes)
        places = PAIR if self.pairs else BYTES
        return weight_values(self.fmt, words, j, part, self.lanes, places, odd)

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
    def add_row_block(self, P, U, F, S, Y, block, c, panel, b, k_block, row, last, turn, asked):
        """One k block of a row block, which begins with that row of Y, or with row `last` if that
        is an earlier one. The sums of the last k block go to Y."""
        sums = T.alloc_buffer((self.rows, self.vectors, self.lanes), "float32")
        high = T.alloc_buffer((self.rows, self.vectors, self.lanes), "int32")
        low = T.alloc_buffer((self.rows, self.vectors, self.lanes), "int32")
        lane = T.meta_var(lanes_at(0, self.lanes))
        x = T.meta_var(lambda g, r, word: P[panel, k_block, b, g, r, word])
        if k_block == 0:
            clear(sums, self.rows, self.lanes)
        else:
            for r in T.unroll(self.rows):
                for v in T.unroll(self.vectors):
                    sums[r, v, lane] = S[c, b * self.rows + r, self.lanes_of(v)]
        for g in T.serial(self.count(k_block)):
            if asked is not None:
                ask_for_factors(asked, turn, k_block * self.k_groups + g, self.groups)
            self.add_group(U, F, sums, high, low, g, x)
        if k_block == self.k_blocks - 1:
            self.store(Y, sums, block + c, row, last)
        else:
            for r in T.unroll(self.rows):
                for v in T.unroll(self.vectors):
                    S[c, b * self.rows + r, self.lanes_of(v)] = sums[r, v, lane]

    @T.inline
    def add_group(self, U, F, sums, high, low, g, x):
        """A group of a row block."""
        lane = T.meta_var(lanes_at(0, self.lanes))
        if self.lanes == WIDE:
            self.multiply_planes(U, high, low, g, x)
        else:
            self.multiply_in_turn(U, low, g, x)
        for r in T.unroll(self.rows):
            for v in T.unroll(self.vectors):
                sums[r, v, lane] = self.added(
                    sums[r, v, lane],
                    self.joined(high[r, v, lane], low[r, v, lane]),
                    *(F, g, v, r, x),
                )

    @T.inline
    def multiply_planes(self, U, high, low, g, x):
        """The integer sums of a group. Both planes of a word follow each other: with one plane
        behind the other, weights stayed in registers, and sums went to the stack for them."""
        lane = T.meta_var(lanes_at(0, self.lanes))
        for r in T.unroll(self.rows):
            for v in T.unroll(self.vectors):
                low[r, v, lane] = splat(self.begin(x, g, r), self.lanes)
                if self.planes == 2:
                    high[r, v, lane] = splat(T.int32(0), self.lanes)
        for q in T.unroll(self.words):
            for r in T.unroll(self.rows):
                if self.planes == 2:
                    self.multiply_word(U, high, g, x, r, q, 0)
                self.multiply_word(U, low, g, x, r, q, self.last_plane)

    @T.inline
    def multiply_in_turn(self, U, sums, g, x):
        """The same with few registers: one plane behind the other, into one sum."""
        lane = T.meta_var(lanes_at(0, self.lanes))
        for r in T.unroll(self.rows):
            for v in T.unroll(self.vectors):
                sums[r, v, lane] = splat(
                    self.begin(x, g, r) if self.planes == 1 else T.int32(0), self.lanes
                )
        for plane in T.serial(self.planes):
            if self.planes == 2:
                for r in T.unroll(self.rows):
                    for v in T.unroll(self.vectors):
                        sums[r, v, lane] = T.shift_left(
                            sums[r, v, lane], splat(T.int32(8), self.lanes)
                        )
            for q in T.serial(self.words):
                for r in T.unroll(self.rows):
                    self.multiply_word(U, sums, g, x, r, q, plane * self.quads)
        if self.planes == 2 and not self.fmt.has_minimum:
            for r in T.unroll(self.rows):
                for v in T.unroll(self.vectors):
                    sums[r, v, lane] = sums[r, v, lane] + splat(self.begin(x, g, r), self.lanes)

    @T.inline
    def multiply_word(self, U, sums, g, x, r, q, plane):
        """Adds a row's products of word q of a group."""
        lane = T.meta_var(lanes_at(0, self.lanes))
        for v in T.unroll(self.vectors):
            sums[r, v, lane] = multiply_words(
                *(self.isa, sums[r, v, lane], U[g, q, self.lanes_of(v)]),
                x(g, r, plane + q),
            )

    def begin(self, x: Words, g: Index, r: Index) -> Expr:
        """What the sum of the last plane begins with: what an offset takes off."""
        return T.int32(0) if self.fmt.has_minimum else x(g, r, self.scale + 1)

    def joined(self, high: Expr, low: Expr) -> Expr:
        """The integer sum of all planes."""
        if self.planes == 1 or self.lanes != WIDE:
            return low
        return T.shift_left(high, splat(T.int32(8), self.lanes)) + low

    def added(
        self, sums: Expr, whole: Expr, F: Buffer, g: Index, v: Index, r: Index, x: Words
    ) -> Expr:
        """`sums` plus a group, scaled."""
        lanes = self.lanes_of(v)
        minimum = F[1, g, lanes] if self.fmt.has_minimum else None
        return add_group(
            *(sums, whole, F[0, g, lanes], minimum),
            *(x(g, r, self.scale), x(g, r, self.scale + 1), self.lanes),
        )

    @T.inline
    def store(self, Y, sums, block, row, last):
        """Writes the rows of a row block that the one before has not written."""
        for r in T.unroll(self.rows):
            if T.min(row, last) + r >= row:
                for v in T.unroll(self.vectors):
                    put(
                        *(Y, T.min(row, last) + r, block * BLOCK + v * self.lanes),
                        *(sums[r, v, lanes_at(0, self.lanes)], self.lanes, self.accumulate),
                    )
