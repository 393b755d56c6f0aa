"""Products of a few rows with fixed-point weights, on vectors.

    for block in column blocks of 32 weight rows:              parallel
      for row_block in row blocks of 4 rows:                   of those left over three, two or one
        sums[rows, 32] = 0                                     float32
        for b in quant blocks of k:
          exact[rows, 32] = 0                                  float64, a whole number below 2^53
          for g in groups of b:
            whole[rows, 32] = W[block, g] * X[rows, g]         int32: by high and by low plane
            exact += whole * W.scale[block, g]                 and the minimum, if the format has it
          sums += exact * (W.unit[block] * X.scale[rows, b])
        Y[rows, block] (+)= sums

X, W, Y as in `fixed_point.py`.
A vector of 16 whole sums becomes two halves of 8 float64; `exact` and `sums` have a buffer for
each half.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.dot import Words, dot
from mlc_llm.kernels.cpu.quant_blocks import (
    BLOCK_GROUPS,
    QUADS,
    quant_blocks,
    scales_start,
    sums_start,
)
from mlc_llm.kernels.cpu.row_block import RowBlock, ask_for_group, put, words_ahead
from mlc_llm.kernels.cpu.scales import MINIMA, SCALES, unit_at, weight_words, whole_at
from mlc_llm.kernels.cpu.vectors import lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

L, V = 16, BLOCK // 16
"""Lanes of integers, and their vectors in a column block."""
HALF = 8
"""Lanes of 64-bit sums."""
ROW_BLOCK = 4
"""Rows whose sums stay in registers together."""
LEFT = (3, 2)
"""Rows that are left over and multiplied together too: drafts and small batches have them."""


def quant_block_sum(sums: Expr, exact: Expr, units: Expr, scale: Expr) -> Expr:
    """`sums` plus a quant block; exact: whole numbers, float64 or int64; scale: bits of its
    float32."""
    x_scale = splat(T.reinterpret(scale, dtype="float32"), HALF)
    return sums + T.cast(exact, f"float32x{HALF}") * (units * x_scale)


class FixedPointGemv:
    """What a task does: all rows of X times column block `block` of each stream."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> None:
        self.k, self.fmt, self.isa, self.accumulate = k, fmt, isa, accumulate
        self.groups = k // fmt.group
        # A single row goes through the streams side by side (see `integer_product.py`).
        self.streams = 1 if n // BLOCK % 2 else 2
        self.apart = n // BLOCK // self.streams
        self.ahead = words_ahead(fmt, self.streams)
        self.lane, self.half = lanes_at(0, L), lanes_at(0, HALF)

    @T.inline
    def multiply(self, X, W, Y, block, m):
        """All m rows. A single one that is left over goes through all streams."""
        self.multiply_rows(X, W, Y, block, 0, m // ROW_BLOCK, ROW_BLOCK)
        self.multiply_rows(X, W, Y, block, m - m % ROW_BLOCK, m % ROW_BLOCK // LEFT[0], LEFT[0])
        self.multiply_rows(
            X, W, Y, block, m - m % ROW_BLOCK, m % ROW_BLOCK % LEFT[0] // LEFT[1], LEFT[1]
        )
        if m % ROW_BLOCK == 1:
            self.multiply_block(X, W, Y, RowBlock(block, self.streams, m - 1, 1))

    @T.inline
    def multiply_rows(self, X, W, Y, block, first, count, rows):
        """`count` row blocks of `rows` rows."""
        for s in T.serial(self.streams):
            for t in T.serial(count):
                self.multiply_block(
                    X, W, Y, RowBlock(block + s * self.apart, 1, first + t * rows, rows)
                )

    @T.inline
    def multiply_block(self, X, W, Y, at):
        """One row block. Buffers stay below 1 KiB, or TVM would keep them in memory."""
        sums0 = T.alloc_buffer((at.sums, V, HALF), "float32")
        sums1 = T.alloc_buffer((at.sums, V, HALF), "float32")
        exact0 = T.alloc_buffer((at.sums, V, HALF), "float64")
        exact1 = T.alloc_buffer((at.sums, V, HALF), "float64")
        self.clear_both(sums0, sums1, at.sums, T.float32(0))
        for b in T.serial(quant_blocks(self.k)):
            self.clear_both(exact0, exact1, at.sums, T.float64(0))
            self.add_groups(X, W, exact0, exact1, at, b)
            self.add_quant_block(X, W, sums0, exact0, 0, at, b)
            self.add_quant_block(X, W, sums1, exact1, 1, at, b)
        self.store(Y, sums0, 0, at)
        self.store(Y, sums1, 1, at)

    @T.inline
    def clear_both(self, first, second, count, zero):
        """Sets the sums of both halves to zero."""
        for i in T.unroll(count):
            for v in T.unroll(V):
                first[i, v, self.half] = splat(zero, HALF)
                second[i, v, self.half] = splat(zero, HALF)

    @T.inline
    def add_groups(self, X, W, exact0, exact1, at, b):
        """Adds all groups of quant block b to the exact sums."""
        high = T.alloc_buffer((at.sums, V, L), "int32")
        low = T.alloc_buffer((at.sums, V, L), "int32")
        for g in T.serial(T.min(BLOCK_GROUPS, self.groups - b * BLOCK_GROUPS)):
            for s in T.unroll(at.streams):
                ask_for_group(
                    self.fmt, W, at.block + s * self.apart, b * BLOCK_GROUPS + g, 0, self.ahead, 1
                )
                for r in T.unroll(at.rows):
                    self.add_words(
                        X, W, high, low, s * at.rows + r,
                        *(at.block + s * self.apart, at.row + r, b * BLOCK_GROUPS + g),
                    )  # fmt: skip
            for s in T.unroll(at.streams):
                for r in T.unroll(at.rows):
                    self.add_group(
                        X, W, exact0, exact1, high, low, s * at.rows + r,
                        *(at.block + s * self.apart, at.row + r, b * BLOCK_GROUPS + g),
                    )  # fmt: skip

    @T.inline
    def add_words(self, X, W, high, low, i, block, row, group):
        """high[i], low[i]: the group's integer sums of one row, by its high and low plane."""
        for v in T.unroll(V):
            high[i, v, self.lane] = splat(T.int32(0), L)
            low[i, v, self.lane] = splat(T.int32(0), L)
        for j in T.unroll(self.fmt.words):
            for v in T.unroll(V):
                high[i, v, self.lane] = self.added(
                    high[i, v, self.lane], self.weights(W, block, group, v), X, row, group, j, 0
                )
                low[i, v, self.lane] = self.added(
                    low[i, v, self.lane], self.weights(W, block, group, v), X, row, group, j, 1
                )

    @T.inline
    def add_group(self, X, W, exact0, exact1, high, low, i, block, row, group):
        """Adds the group's sums of one row to both halves of the exact sums."""
        for v in T.unroll(V):
            exact0[i, v, self.half] = self.scaled(
                exact0[i, v, self.half], high[i, v, self.lane], low[i, v, self.lane],
                *(X[row, sums_start(self.k) + group], W, block, group, v, 0),
            )  # fmt: skip
            exact1[i, v, self.half] = self.scaled(
                exact1[i, v, self.half], high[i, v, self.lane], low[i, v, self.lane],
                *(X[row, sums_start(self.k) + group], W, block, group, v, 1),
            )  # fmt: skip

    @T.inline
    def add_quant_block(self, X, W, sums, exact, half, at, b):
        """Adds the exact sums of quant block b, in units, to the float32 sums."""
        for s in T.unroll(at.streams):
            for r in T.unroll(at.rows):
                for v in T.unroll(V):
                    sums[s * at.rows + r, v, self.half] = quant_block_sum(
                        sums[s * at.rows + r, v, self.half],
                        exact[s * at.rows + r, v, self.half],
                        unit_at(W, at.block + s * self.apart, v * L + half * HALF, HALF),
                        X[at.row + r, scales_start(self.k) + b],
                    )

    @T.inline
    def store(self, Y, sums, half, at):
        """Puts one half of the sums into Y."""
        for s in T.unroll(at.streams):
            for r in T.unroll(at.rows):
                for v in T.unroll(V):
                    put(
                        Y, at.row + r,
                        (at.block + s * self.apart) * BLOCK + v * L + half * HALF,
                        *(sums[s * at.rows + r, v, self.half], HALF, self.accumulate),
                    )  # fmt: skip

    def weights(self, W: Buffer, block: Index, group: Index, vector: Index) -> Words:
        """Vector `vector` of the words of a group's rows, by their number."""
        return weight_words(self.fmt, W, block, group, vector * L, L)

    def added(
        self, sums: Expr, w: Words, X: Buffer, row: Index, group: Index, j: Index, plane: int
    ) -> Expr:
        """`sums` plus weight word j times one plane of a row's group."""

        def x(i: Index) -> Expr:
            """Word i of the group; `dot` counts on from the high to the low plane."""
            return X[row, plane * (self.k // 4) + group * QUADS + i - plane * QUADS]

        words: Words = x
        for part in range(self.fmt.parts):
            sums = dot(self.isa, self.fmt, sums, w, words, j, part, plane)
        return sums

    def scaled(
        self, exact: Expr, high: Expr, low: Expr, total: Expr, W: Buffer,
        block: Index, group: Index, vector: Index, half: int,
    ) -> Expr:  # fmt: skip
        """`exact` plus half a vector of the group's sums; total: the sum of its activations."""
        fmt, where = self.fmt, (self.fmt, W, block, group)
        whole = T.shift_left(high, splat(T.int32(8), L)) + low
        if fmt.offset:
            whole = whole - splat(total * T.int32(fmt.offset), L)
        exact = exact + _doubles(whole, half) * _doubles(whole_at(*where, SCALES, vector, L), half)
        if fmt.has_minimum:
            minima = _doubles(whole_at(*where, MINIMA, vector, L), half)
            exact = exact + minima * splat(T.cast(total, "float64"), HALF)
        return exact


def _doubles(integers: Expr, half: int) -> Expr:
    """The first or second 8 of 16 integers as float64."""
    lanes = list(range(half * HALF, half * HALF + HALF))
    return T.cast(T.Shuffle([integers], lanes), f"float64x{HALF}")
