"""Products of fast rows and weights of 16-bit floats, as pairs of bfloat16 (AVX-512 BF16).

    for row in fast rows of X:                           parallel; threads meet
      P[row] = pairs of neighbours of X[row], rounded to bfloat16
    for block in column blocks of 32 weight rows:        parallel
      U = pairs of neighbours of W[block]                float16 is rounded, for a few rows where it
                                                         is read; bfloat16 is in pairs
      for row_block in row blocks of P:                  the rows left over by four, two and one
        sums[rows, 32] = 0
        for j in pairs of columns:
          sums += P[rows, j] * U[j]                      two products, see `bf16_pairs.dot`
        Y[rows, block] (+)= sums
      the other rows as in `float_matmul.py`

X          float32 [m, k]                                activations; k is a multiple of 32
W          float16 [n/32, k, 32], or int32 [n/32, k/2, 32] of bfloat16 (`formats.py`)
fast_rows  int32 [1]                                     number of the first rows that are fast
Y          float32 [m, n]                                the result
P          float32 [m, k/2]                              words of pairs
U          int32 [k/2, 32]                               the same of weights
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.bf16 import round_pair
from mlc_llm.kernels.cpu.bf16_pairs import L, dot, imported, neighbours
from mlc_llm.kernels.cpu.float_matmul import FloatProduct, float_weights
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.row_block import clear, each_block, store
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index

ROWS, VECTORS = 8, BLOCK // L
"""Rows of a row block, whose sums fill half the registers; vectors of a column block."""


def has_pairs(fmt: WeightFormat, isa: Isa, k: int) -> bool:
    """Whether there is such a product for matrices of k columns."""
    return isa.bf16 and isa.fast and fmt.is_float and fmt.bits == 16 and k % (2 * L) == 0


def pair_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, accumulate: bool, *, fast: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it. Unless it is `fast`, all rows are fast ones."""
    product, (shape, dtype) = PairProduct(n, k, fmt, accumulate), tensor_shape(fmt, n, k)
    exact = FloatProduct(n, k, fmt, isa, accumulate)

    @T.inline
    def pair_rows(X, P, count):
        """All fast rows."""
        for row in T.parallel(count):
            product.pair_row(X, P, row)

    @T.inline
    def multiply(X, P, W, Y, count, m):
        """All rows, of which the first `count` are fast."""
        for block in T.parallel(product.blocks):
            align_stack()
            product.multiply(P, W, Y, block, count)
            if fast:
                exact.multiply_rows(X, W, Y, block, count, m - count)

    @T.prim_func(private=True, s_tir=True)
    def pair_product(
        x: T.handle, W: T.Buffer(shape, dtype), fast_rows: T.Buffer((1,), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, k), "float32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"), imported(True):
            P = T.alloc_buffer((m, k // 2), "float32")
            count: T.let[T.int32] = fast_rows[0] if fast else m
            if product.blocks == 1:  # a loop of one task is none, and all threads would do it
                pair_rows(X, P, count)
                multiply(X, P, W, Y, count, m)
            else:
                with one_launch():
                    with all_meet():
                        pair_rows(X, P, count)
                    multiply(X, P, W, Y, count, m)

    return pair_product if fast else without(pair_product, "fast_rows")


class PairProduct:
    """Row blocks times a column block."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, accumulate: bool) -> None:
        self.k, self.fmt, self.accumulate, self.blocks = k, fmt, accumulate, n // BLOCK
        self.lane = lanes_at(0, L)

    @T.inline
    def pair_row(self, X, P, row):
        """A row of P."""
        for i in T.serial(self.k // (2 * L)):
            P[row, lanes_at(i * L, L)] = neighbours(
                X[row, lanes_at(i * 2 * L, L)], X[row, lanes_at(i * 2 * L + L, L)]
            )

    @T.inline
    def multiply(self, P, W, Y, block, m):
        """The first m rows times column block `block`."""
        if self.fmt.is_bfloat:
            self.multiply_rows(P, W, Y, block, m, self.pairs)
        elif m >= ROWS:
            U = T.alloc_buffer((1, self.k // 2, BLOCK), "int32")
            self.pair_weights(W, U, block)
            self.multiply_rows(P, U, Y, block, m, self.pairs)
        else:
            self.multiply_rows(P, W, Y, block, m, self.made)

    @T.inline
    def pair_weights(self, W, U, block):
        """U of float16."""
        for j in T.serial(self.k // 2):
            for v in T.unroll(VECTORS):
                U[0, j, lanes_at(v * L, L)] = self.made(W, block, j, v)

    @T.inline
    def multiply_rows(self, P, words, Y, block, m, pairs_of):
        """pairs_of: reads pairs of weights in `words`."""
        each_block(self.multiply_block, (pairs_of, P, words, Y), block, 0, m, ROWS)

    @T.inline
    def multiply_block(self, pairs_of, P, words, Y, block, row, rows):
        """One row block."""
        sums = T.alloc_buffer((rows, VECTORS, L), "float32")
        clear(sums, rows, L)
        for j in T.serial(self.k // 2):
            for v in T.unroll(VECTORS):
                for r in T.unroll(rows):
                    sums[r, v, self.lane] = dot(
                        sums[r, v, self.lane],
                        pairs_of(words, block, j, v),
                        P[row + r, j],
                    )
        store(Y, sums, 0, block, row, rows, L, self.accumulate)

    def pairs(self, words: Buffer, block: Index, j: Index, vector: Index) -> Expr:
        """Those of a vector of weight rows: of W, or of U, which has one block."""
        return words[block if self.fmt.is_bfloat else 0, j, lanes_at(vector * L, L)]

    def made(self, W: Buffer, block: Index, j: Index, vector: Index) -> Expr:
        """The same, made of float16."""
        first, second = (
            float_weights(self.fmt, W, block, 2 * j + i, vector * L, L) for i in range(2)
        )
        return round_pair(first, second)
