"""What a task of `integer_matmul.py` does: rows of activations times a column block of weights.

The sums stay in registers. AVX2 has one sum of whole products; it is called `high` here.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import AVX2, AVX_VNNI, Isa
from mlc_llm.kernels.cpu.adapter_asks import ask_for_factors
from mlc_llm.kernels.cpu.dot import Words, bias, dot
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quantized_rows import SCALE, SCALED_SUM, SUM, description
from mlc_llm.kernels.cpu.row_block import (
    RowBlock,
    Turn,
    add_group,
    ask_for_group,
    clear,
    store,
    words_ahead,
)
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

TRIPLE, PAIR = 3, 2
"""Rows of smaller row blocks."""
LEAST_ASKED = 2**20
"""Weights of a matrix for which single rows ask ahead, where `Isa.asks`: with smaller ones, a model
of 100 MB decoded 8 % slower at times."""


@record(eq=False)
class Group:
    """A group of columns of a row block, and so many vectors of its column blocks, from one on."""

    at: RowBlock
    number: Index
    first: Index
    vectors: int


class IntegerProduct:
    """What a task does: the rows of X times column block `block` of each stream.

    first: the first column block of a product of n rows of the matrix. planes: how many planes
    count, if it is not as usual.
    """

    def __init__(
        self,
        n: int,
        k: int,
        fmt: WeightFormat,
        isa: Isa,
        accumulate: bool,
        first: int = 0,
        planes: int | None = None,
    ) -> None:
        self.n, self.k, self.fmt, self.isa, self.accumulate = n, k, fmt, isa, accumulate
        self.first, self.planes = first, isa.planes if planes is None else planes
        self.lanes, self.vectors, self.groups = isa.lanes, BLOCK // isa.lanes, k // fmt.group
        self.lane = lanes_at(0, isa.lanes)
        self.streams = _streams(n, isa)
        self.apart = n // BLOCK // self.streams
        self.asks = self.streams > 1 or (isa.asks and n * k >= LEAST_ASKED)
        self.ahead = words_ahead(fmt, self.streams)
        self.block_words = self.groups // fmt.span * fmt.stride

    @T.inline
    def share(self, X, W, Y, start, count, asked):
        """Rows `start` to `start + count`, on all threads."""
        for block in T.parallel(self.apart):
            align_stack()
            self.multiply_rows(X, W, Y, self.first + block, start, count, self.planes, asked)

    @T.inline
    def multiply(self, X, W, Y, block, m):
        """All m rows by all planes that count."""
        self.multiply_rows(X, W, Y, block, 0, m, self.isa.planes, None)

    @T.inline
    def multiply_rows(self, X, W, Y, block, start, count, planes, asked):
        """Rows `start` to `start + count`, of which `planes` planes are multiplied. Rows that fill
        no row block, as drafts and small batches have them, are one of three or two; a single one
        goes through all streams."""
        size = T.meta_var(self.isa.row_block)
        blocks: T.let[T.int32] = count // size + count % size // PAIR
        self.multiply_blocks(X, W, Y, block, start, count // size, size, planes, asked, 0, blocks)
        left = T.meta_var(start + count - count % size)
        if size > PAIR:
            triples = T.meta_var(count % size // TRIPLE)
            self.multiply_blocks(
                X, W, Y, block, left, triples, TRIPLE, planes, asked, count // size, blocks
            )
            pairs = T.meta_var(count % size % TRIPLE // PAIR)
            self.multiply_blocks(
                X, W, Y, block, left, pairs, PAIR, planes, asked, count // size, blocks
            )
        for t in T.serial(count % size % TRIPLE % PAIR):
            self.multiply_block(
                X, W, Y, RowBlock(block, self.streams, start + count - 1 + t, 1), planes, None, None
            )

    @T.inline
    def multiply_blocks(self, X, W, Y, block, start, count, rows, planes, asked, before, blocks):
        """`count` row blocks of `rows` rows, of which `blocks` have two or more, `before` of them
        before these."""
        for s in T.serial(self.streams):
            for t in T.serial(count):
                row = T.alloc_buffer((1,), "int32")  # or TVM would write it out for each word
                row[0] = start + t * rows
                self.multiply_block(
                    X, W, Y, RowBlock(block + s * self.apart, 1, row[0], rows), planes,
                    Turn(block + s * self.apart, before + t, blocks), asked,
                )  # fmt: skip

    @T.inline
    def multiply_block(self, X, W, Y, at, planes, turn, asked):
        """One row block. turn: None for a single row.

        The planes have a buffer each: TVM keeps those of 1 KiB in memory, smaller ones in
        registers.
        """
        sums = T.alloc_buffer((at.sums, self.vectors, self.lanes), "float32")
        together = T.meta_var(self.together(at, planes))
        high = T.alloc_buffer((at.sums, together, self.lanes), "int32")
        low = T.alloc_buffer((at.sums, together, self.lanes), "int32")
        clear(sums, at.sums, self.lanes)
        for span in T.serial(self.groups // self.fmt.span):
            for i in T.serial(self.fmt.span):
                if turn is not None:
                    self.ask(W, at, span, i, turn, asked)
                elif self.asks:
                    for s in T.unroll(at.streams):
                        ask_for_group(
                            self.fmt, W, at.block + s * self.apart, span, i, self.ahead, 1
                        )
                for part in T.unroll(self.vectors // together):
                    group = T.meta_var(
                        Group(at, span * self.fmt.span + i, part * together, together)
                    )
                    self.clear_group(high, low, group, planes)
                    self.add_words(X, W, high, low, group, planes)
                    self.add_group(X, W, sums, high, low, group, planes)
        for s in T.unroll(at.streams):
            store(
                Y, sums, s * at.rows, at.block + s * self.apart, at.row, at.rows,
                self.lanes, self.accumulate,
            )  # fmt: skip

    @T.inline
    def ask(self, W, at, span, i, turn, asked):
        """Asks the memory for weights: the first row block for its own, the others for those of the
        next column block; and for what adapters read."""
        if self.isa.row_block > 1:
            if turn.number == 0:
                ask_for_group(self.fmt, W, at.block, span, i, self.ahead, 2)
            elif (span * self.fmt.span + i) % T.max(turn.count - 1, 1) == turn.number - 1:
                ask_for_group(self.fmt, W, at.block, span, i, self.block_words, 2)
        if asked is not None:
            ask_for_factors(asked, turn, span * self.fmt.span + i, self.groups)

    def together(self, at: RowBlock, planes: int) -> int:
        """Vectors of a column block whose integer sums stay in registers together. All four of two
        rows and both planes would fill the sixteen registers of AVX-VNNI."""
        is_narrow = self.isa.lanes == AVX_VNNI.lanes
        return self.vectors // (2 if is_narrow and planes == 2 and at.sums > 1 else 1)

    @T.inline
    def clear_group(self, high, low, group, planes):
        """Sets the integer sums to zero."""
        for i in T.unroll(group.at.sums):
            for v in T.unroll(group.vectors):
                high[i, v, self.lane] = splat(T.int32(0), self.lanes)
                if planes == 2:
                    low[i, v, self.lane] = splat(T.int32(0), self.lanes)

    @T.inline
    def add_words(self, X, W, high, low, group, planes):
        """Adds the products of all words of a group to the integer sums."""
        if self.loops_over_words(group.at):
            for j in T.serial(self.fmt.low_words):
                self.add_word(X, W, high, low, group, j, planes)
        else:
            for j in T.unroll(self.fmt.low_words):
                self.add_word(X, W, high, low, group, j, planes)

    def loops_over_words(self, at: RowBlock) -> bool:
        """Whether the words of a group are a loop. Of several rows with AVX2's 16 registers, LLVM
        computes one sum after the other if it sees all words, and all weights go to the stack."""
        return self.isa.name == AVX2.name and at.rows > 1 and not self.fmt.high_bits

    @T.inline
    def add_word(self, X, W, high, low, group, j, planes):
        """Adds the products of word j. Its parts follow each other, so that registers hold the
        weights of one."""
        self.add_part(X, W, high, low, group, j, 0, planes)
        if self.fmt.parts == 2:
            self.add_part(X, W, high, low, group, j, 1, planes)

    @T.inline
    def add_part(self, X, W, high, low, group, j, part, planes):
        """Adds the products of a part of word j."""
        at = T.meta_var(group.at)
        for s in T.unroll(at.streams):
            for r in T.unroll(at.rows):
                x = T.meta_var(self.words_of(X, at.row + r, group.number))
                for v in T.unroll(group.vectors):
                    high[s * at.rows + r, v, self.lane] = self.added(
                        high[s * at.rows + r, v, self.lane],
                        *(self.weights(W, group, s, v), x, j, part, 0),
                    )
                    if planes == 2:
                        low[s * at.rows + r, v, self.lane] = self.added(
                            low[s * at.rows + r, v, self.lane],
                            *(self.weights(W, group, s, v), x, j, part, 1),
                        )

    @T.inline
    def add_group(self, X, W, sums, high, low, group, planes):
        """Adds the integer sums of a group, scaled, to the float32 sums."""
        at, g = T.meta_var((group.at, group.number))
        for s in T.unroll(at.streams):
            for r in T.unroll(at.rows):
                for i in T.unroll(group.vectors):
                    v, block = T.meta_var((group.first + i, at.block + s * self.apart))
                    sums[s * at.rows + r, v, self.lane] = self.scaled(
                        sums[s * at.rows + r, v, self.lane],
                        high[s * at.rows + r, i, self.lane],
                        low[s * at.rows + r, i, self.lane] if planes == 2 else None,
                        scale_at(self.fmt, W, block, g, v, self.lanes),
                        minimum_at(self.fmt, W, block, g, v, self.lanes),
                        description(X, at.row + r, g, self.fmt.group, planes < self.isa.sums),
                    )

    def weights(self, W: Buffer, group: Group, stream: Index, vector: Index) -> Words:
        """A vector of the words of a group's rows, by their number."""
        block, start = group.at.block + stream * self.apart, group.first + vector
        return weight_words(self.fmt, W, block, group.number, start * self.lanes, self.lanes)

    def words_of(self, X: Buffer, row: Index, group: Index) -> Words:
        """The words of a row's group by their number."""
        return lambda i: X[row, group, i]

    def added(self, sums: Expr, w: Words, x: Words, j: Index, part: int, plane: int) -> Expr:
        """`sums` plus a part of weight word j times one plane of the activations."""
        return dot(self.isa, self.fmt, sums, w, x, j, part, plane)

    def scaled(
        self, sums: Expr, high: Expr, low: Expr | None, scale: Expr, minimum: Expr | None, x: Words
    ) -> Expr:
        """`sums` plus a group; x: the words that describe the group's activations."""
        L, offset = self.lanes, self.fmt.offset - bias(self.isa, self.fmt)
        whole = high
        if low is not None:
            whole = T.shift_left(whole, splat(T.int32(8), L)) + low
        if offset:
            whole = whole - splat(x(SUM) * T.int32(offset), L)
        return add_group(sums, whole, scale, minimum, x(SCALE), x(SCALED_SUM), L)


def _streams(n: int, isa: Isa) -> int:
    """Column blocks that a single row goes through side by side, each from another part of W.

    A single one reads as fast as the memory allows on AMD's EPYC (Zen 4): the bytes come in their
    order, and the processor's own prefetching keeps up. Of two it read 20 to 30 % less a second,
    and asking ahead cost 10 to 20 % (`Isa.asks`). Machines with AMX keep two and ask ahead, which
    was faster when it came and was not compared since; there is one where threads could not share
    pairs evenly.
    """
    blocks = n // BLOCK
    is_even = blocks % 4 == 0 or (blocks % 2 == 0 and blocks >= 64)
    return 2 if isa.amx_tiles and is_even else 1
