"""Products in float32: weights become float32 as the file's format says, and sums are plain.

    for block in column blocks of 32 weight rows:        parallel
      for row_block in row blocks of X:                  the rows left over one by one
        sums[rows, 32] = 0
        for column in k:
          sums += X[rows, column] * float32(W[block, column])
        Y[rows, block] (+)= sums

X  float32 [m, k]                                          activations
W  int32 [n/32, spans, stride], float [n/32, k, 32], or    packed weights (`formats.py`)
   int32 [n/32, k/2, 32] of bfloat16
Y  float32 [m, n]                                          the result

The columns of packed integers come in the order of their words (`dot.py`).
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.dot import BYTE, Words, weight_values
from mlc_llm.kernels.cpu.float8 import e4m3
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.row_block import ask_for_floats, clear, each_block, store
from mlc_llm.kernels.cpu.scales import minimum_at, scale_at, weight_words
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

LANES, ROWS = 16, 8
"""Vectors of AVX-512, and rows of a row block of plain floats with so many registers."""


def weight_floats(
    fmt: WeightFormat,
    lanes: int,
    w: Words,
    scale: Expr,
    minimum: Expr | None,
    j: Index,
    part: Index,
    byte: Index,
) -> Expr:
    """Float32 weights out of words, with the format's offset or minimum: a byte, or a part of it,
    of word j."""
    f32 = f"float32x{lanes}"
    quantised = weight_values(fmt, w, j, part, lanes, BYTE, byte)
    if fmt.float8:
        return e4m3(quantised, lanes) * scale
    if minimum is not None:
        return T.cast(quantised, f32) * scale + minimum
    return T.cast(quantised - splat(T.int32(fmt.offset), lanes), f32) * scale


def float_weights(
    fmt: WeightFormat, W: Buffer, block: Index, column: Index, row: Index, lanes: int
) -> Expr:
    """Float32 weights of a column: `lanes` rows of a block of rows, from number `row` on."""
    at, wide = lanes_at(row, lanes), f"float32x{lanes}"
    if not fmt.is_bfloat:
        return T.cast(W[block, column, at], wide)
    return T.reinterpret(upper_half(W[block, column // 2, at], column, lanes), dtype=wide)


def upper_half(words: Expr, column: Index, lanes: int | None = None) -> Expr:
    """Bits of float32, made of the bfloat16 of a column; lanes: of vectors of words."""

    def each(value: Expr) -> Expr:
        return value if lanes is None else splat(value, lanes)

    moved = T.shift_left(words, each(T.int32(16) - column % 2 * T.int32(16)))
    return moved & each(T.int32(-0x10000))


def float_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Weights are packed integers, or stored as float16, bfloat16 or float32."""
    make = FloatProduct if fmt.is_float else DequantisedProduct
    product, (shape, dtype) = make(n, k, fmt, isa, accumulate), tensor_shape(fmt, n, k)

    @T.prim_func(private=True, s_tir=True)
    def float_product(x: T.handle, W: T.Buffer(shape, dtype), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            for block in T.parallel(product.apart):
                align_stack()
                product.multiply(X, W, Y, block, m)

    return float_product


class DequantisedProduct:
    """Row blocks times packed integers that become float32 word by word."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> None:
        self.fmt, self.accumulate, self.groups = fmt, accumulate, k // fmt.group
        self.apart, self.size = n // BLOCK, isa.row_block
        self.lanes, self.vectors = isa.lanes, BLOCK // isa.lanes
        self.lane = lanes_at(0, isa.lanes)

    @T.inline
    def multiply(self, X, W, Y, block, m):
        """All m rows times column block `block`."""
        for t in T.serial(m // self.size):
            self.multiply_block(X, W, Y, block, t * self.size, self.size)
        for t in T.serial(m % self.size):
            self.multiply_block(X, W, Y, block, m - m % self.size + t, 1)

    @T.inline
    def multiply_block(self, X, W, Y, block, row, rows):
        """One row block."""
        sums = T.alloc_buffer((rows, self.vectors, self.lanes), "float32")
        weights = T.alloc_buffer((self.vectors, self.lanes), "float32")
        clear(sums, rows, self.lanes)
        for g in T.serial(self.groups):
            for j in T.serial(self.fmt.low_words):
                for part in T.unroll(self.fmt.parts):
                    for byte in T.unroll(4):
                        self.dequantise(W, weights, block, g, j, part, byte)
                        self.add_column(X, sums, weights, row, rows, self.column(g, j, part, byte))
        store(Y, sums, 0, block, row, rows, self.lanes, self.accumulate)

    @T.inline
    def dequantise(self, W, weights, block, g, j, part, byte):
        """The weights of one column: a byte, or a part of it, of word j of group g."""
        for v in T.unroll(self.vectors):
            weights[v, self.lane] = weight_floats(
                *(self.fmt, self.lanes),
                weight_words(self.fmt, W, block, g, v * self.lanes, self.lanes),
                scale_at(self.fmt, W, block, g, v, self.lanes),
                minimum_at(self.fmt, W, block, g, v, self.lanes),
                *(j, part, byte),
            )

    @T.inline
    def add_column(self, X, sums, weights, row, rows, column):
        """Adds the products of one column."""
        for r in T.unroll(rows):
            for v in T.unroll(self.vectors):
                sums[r, v, self.lane] = sums[r, v, self.lane] + weights[v, self.lane] * splat(
                    X[row + r, column], self.lanes
                )

    def column(self, group: Index, j: Index, part: Index, byte: Index) -> Index:
        """The column whose weights are in this part of this byte of a word."""
        quads, words = self.fmt.group // 4, self.fmt.low_words
        return group * self.fmt.group + quads * byte + part * words + j


class FloatProduct:
    """Row blocks times weights that are floats already."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool) -> None:
        self.k, self.fmt, self.accumulate = k, fmt, accumulate
        self.apart, self.size = n // BLOCK, ROWS if isa.lanes == LANES else isa.row_block
        self.lanes, self.vectors = isa.lanes, BLOCK // isa.lanes
        self.lane, self.asks = lanes_at(0, isa.lanes), isa.asks

    @T.inline
    def multiply(self, X, W, Y, block, m):
        """All m rows times column block `block`."""
        self.multiply_rows(X, W, Y, block, 0, m)

    @T.inline
    def multiply_rows(self, X, W, Y, block, first, count):
        """`count` rows, from number `first` on."""
        if count <= self.size:
            each_block(self.multiply_block, (True, X, W, Y), block, first, count, self.size)
        else:
            each_block(self.multiply_block, (False, X, W, Y), block, first, count, self.size)

    @T.inline
    def multiply_block(self, asks, X, W, Y, block, row, rows):
        """One row block. asks: the memory for weights ahead, since no other row block follows; of
        several, the loops that ask took longer than they gained."""
        sums = T.alloc_buffer((rows, self.vectors, self.lanes), "float32")
        clear(sums, rows, self.lanes)
        together = T.meta_var(2 if self.fmt.is_bfloat else 1)
        for i in T.serial(self.k // together):
            if asks and (rows > 1 or self.asks):
                ask_for_floats(W, block, i)
            for part in T.unroll(together):
                self.add_column(X, W, sums, block, row, rows, i * together + part)
        if self.k % together == 1:
            self.add_column(X, W, sums, block, row, rows, self.k - 1)
        store(Y, sums, 0, block, row, rows, self.lanes, self.accumulate)

    @T.inline
    def add_column(self, X, W, sums, block, row, rows, column):
        """Adds the products of one column."""
        for r in T.unroll(rows):
            for v in T.unroll(self.vectors):
                sums[r, v, self.lane] = sums[r, v, self.lane] + splat(
                    X[row + r, column], self.lanes
                ) * float_weights(self.fmt, W, block, column, v * self.lanes, self.lanes)
