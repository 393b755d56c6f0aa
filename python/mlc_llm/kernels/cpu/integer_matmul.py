"""Products of packed weights and 16-bit activations, as integers on vectors.

    X = quantised rows of what `source` says                         parallel; threads meet
    for block in column blocks of 32 weight rows:                    parallel
      for row_block in row blocks of X:                         of those left over three, two or one
        sums[rows, 32] = 0                                           float32
        for g in groups of k columns:
          high[rows, 32], low[rows, 32] = 0                          int32, exact
          for j in words of a group:
            high += W[block, g, j] * high plane of X[rows, g, j]
            low  += W[block, g, j] * low plane of X[rows, g, j]      not for fast rows
          sums += (256 * high + low) * W.scale[block, g] * X.scale[rows, g]
                  + W.minimum[block, g] * X.scaled_sum[rows, g]      if the format has minima
        Y[rows, block] (+)= sums

X          int32 [m, k/group, group/2 + 6]  quantised activations (`activation.py`), made before,
                                            or in the same launch (`launches.py`)
W          int32 [n/32, spans, stride]      packed weights (`backends/cpu/formats.py`)
fast_rows  int32 [1]                        number of the first rows that are fast
Y          float32 [m, n]                   the result

`integer_product.py` has what a task does. On x86 many rows take another way to the same bits
(`unpacked_matmul.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.adapter_asks import (
    Factors,
    asked_of,
    asking,
    down_shape,
    dtype_of,
    up_shape,
)
from mlc_llm.kernels.cpu.adapter_groups import table_size
from mlc_llm.kernels.cpu.integer_product import IntegerProduct
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.kernels.cpu.quantized_rows import SharedRows, quantized_width
from mlc_llm.kernels.cpu.unpacked_matmul import ManyRows, unpacks
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Buffer
from mlc_llm.record import record


@record(eq=False)
class Rows:
    """What a product reads: rows that are quantised already, or that it quantises first."""

    inputs: SharedRows | None
    given: Given | None
    quantised: Buffer


def integer_matmul(
    n: int,
    k: int,
    fmt: WeightFormat,
    isa: Isa,
    accumulate: bool,
    *,
    fast: bool = False,
    exact: range = range(0),
    asks: Factors | None = None,
    source: Source | None = None,
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it."""
    groups, blocks = k // fmt.group, n // BLOCK
    product = MatrixProduct(column_parts(blocks, isa, exact), k, fmt, isa, accumulate)
    coarse = MatrixProduct([(range(blocks), 1)], k, fmt, isa, accumulate)
    fine = MatrixProduct([(range(blocks), isa.sums)], k, fmt, isa, accumulate)
    shape, _ = tensor_shape(fmt, n, k)
    kind = "plain" if source is None else source.kind
    inputs = None if source is None else SharedRows(kind, k, fmt.group, isa, source.eps)

    @T.prim_func(private=True, s_tir=True)
    def integer_product(
        x: T.handle, weight: T.handle, vector: T.handle, quantised: T.handle,
        W: T.Buffer(shape, "int32"), fast_rows: T.Buffer((1,), "int32"), down: T.handle,
        up: T.handle, ranks: T.handle, slots: T.handle, table: T.handle, y: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        a = T.int32()
        r = T.int32()
        X = T.match_buffer(x, (m, input_width(kind, k)), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(vector, (k,), "float32")
        Q = T.match_buffer(quantised, (m, groups, quantized_width(fmt.group)), "int32")
        D = T.match_buffer(down, down_shape(asks, a, r), dtype_of(asks))
        U = T.match_buffer(up, up_shape(asks, a, r), dtype_of(asks))
        R = T.match_buffer(ranks, (a,), "int32")
        S = T.match_buffer(slots, (m,), "int32")
        G = T.match_buffer(table, (table_size(m),), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            asked = T.meta_var(asked_of(asks, D, U, R, S, G))
            rows = T.meta_var(Rows(inputs, Given(X, N, BIAS), Q))
            if fast:
                # Read once: inside the loops it would be read again for each group of columns.
                first: T.let[T.int32] = fast_rows[0]
                if first > 0:
                    coarse.multiply(rows, W, Y, 0, first, asked)
                if m > first:
                    fine.multiply(rows, W, Y, first, m - first, asked)
            else:
                product.multiply(rows, W, Y, 0, m, asked)

    unread = ("X", "N", "BIAS") if source is None else KINDS[kind].unread
    return without(asking(integer_product, asks), *unread, *(() if fast else ("fast_rows",)))


class MatrixProduct:
    """Rows of X times the whole matrix, on all threads. parts: of `column_parts`."""

    def __init__(
        self,
        parts: Sequence[tuple[range, int]],
        k: int,
        fmt: WeightFormat,
        isa: Isa,
        accumulate: bool,
    ) -> None:
        self.few = [
            IntegerProduct(BLOCK * len(blocks), k, fmt, isa, accumulate, blocks.start, planes)
            for blocks, planes in parts
        ]
        self.many = ManyRows(parts, k, fmt, isa, accumulate) if unpacks(isa) else None

    @T.inline
    def multiply(self, rows, W, Y, start, count, asked):
        """Rows `start` to `start + count`."""
        if self.many is None:
            self.multiply_few(rows, W, Y, start, count, asked)
        elif count >= self.many.least_rows:
            self.many.multiply(rows, W, Y, start, count, asked)
        else:
            self.multiply_few(rows, W, Y, start, count, asked)

    @T.inline
    def multiply_few(self, rows, W, Y, start, count, asked):
        """The same with weights unpacked for each row block."""
        if rows.inputs is None:
            self.share(rows.quantised, W, Y, start, count, asked, 0)
        elif self.few[0].apart == 1:  # such a loop would be no loop, and all threads would do it
            rows.inputs.quantize_all(rows.given, rows.quantised, start, count)
            self.share(rows.quantised, W, Y, start, count, asked, 0)
        else:
            with one_launch():
                with all_meet():
                    rows.inputs.quantize_all(rows.given, rows.quantised, start, count)
                self.share(rows.quantised, W, Y, start, count, asked, 0)

    @T.inline
    def share(self, X, W, Y, start, count, asked, i):
        """Quantised rows times the parts from number i on."""
        self.few[i].share(X, W, Y, start, count, asked)
        if i + 1 < len(self.few):
            self.share(X, W, Y, start, count, asked, i + 1)


def column_parts(blocks: int, isa: Isa, exact: range) -> list[tuple[range, int]]:
    """Column blocks that follow each other, and how many planes count in them. exact: rows of the
    matrix. A part has two blocks or more, since a parallel loop of one would be no loop: where one
    would have less, the whole matrix is exact."""
    if not exact or isa.planes == isa.sums:
        return [(range(blocks), isa.planes)]
    start, stop = exact.start // BLOCK, -(-exact.stop // BLOCK)
    rest = range(start), range(stop, blocks)
    bounds = (rest[0], isa.planes), (range(start, stop), isa.sums), (rest[1], isa.planes)
    parts = [part for part in bounds if part[0]]
    if any(len(part) == 1 for part, _ in parts):
        return [(range(blocks), isa.sums)]
    return parts
