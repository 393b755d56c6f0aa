"""Prepares the input of a matrix: a norm or an activation, then quantisation to 16 bits.

    for row in rows of X:                             parallel, unless they are few
      for g in groups of k columns:
        v = what the kind makes of X[row, g]          `row_kinds.py`
        scale = max |v| / LIMIT
        q = round(v / scale)
        Y[row, g] = planes of q; scale, sum of q, scale * sum of q      `quantized_rows.py`

X, weight and bias: see `row_kinds.py`; most kinds have no bias
Y       int32 [m, k/group, group/2 + 6] for integer kernels (`quantize`), of each group:
        * group/2 words, two planes of 16-bit values in the order of `dot.py`
        * SCALE, SUM and SCALED_SUM: the bits of the float32 scale (value = scale * integer); the
          sum of the integers, for weights with an offset; the bits of scale * sum, for weights
          with a minimum
        * the same three of the rounded high plane alone, where the planes are bytes
        float32 [m, k] for float kernels (`floats`), which holds v
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.quantized_rows import QuantizedRows, quantized_width
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape

SERIAL_ROWS = 2
"""Up to here a thread-pool launch costs more than the rows."""


class Source(NamedTuple):
    """Of which rows a product makes what it reads: their kind; eps belongs to a norm."""

    kind: str
    eps: float


@cache
def quantize(kind: str, k: int, group: int, isa: Isa, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y) for integer kernels; eps: of a norm."""
    width, rows = input_width(kind, k), QuantizedRows(kind, k, group, isa, eps)

    @T.prim_func(private=True, s_tir=True)
    def quantize_rows(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, k // group, quantized_width(group)), "int32")
        with T.sblock("root"):
            each_row(rows.quantize, m, Given(X, N, BIAS), Y)

    return without(quantize_rows, *KINDS[kind].unread)


@cache
def floats(kind: str, k: int, eps: float = 0.0) -> tvm.tirx.PrimFunc:
    """Kernel of (X, weight, bias, Y) for float kernels. k is a multiple of 8."""
    L, width = 8, input_width(kind, k)

    @T.inline
    def one_row(given, Y, row):
        """What the kind makes of a row."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        for i in T.serial(k // L):
            Y[row, lanes_at(i * L, L)] = load(kind, given, row, i * L, k, inv, L)

    @T.prim_func(private=True, s_tir=True)
    def float_rows(x: T.handle, weight: T.handle, bias: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        Y = T.match_buffer(y, (m, k), "float32")
        with T.sblock("root"):
            each_row(one_row, m, Given(X, N, BIAS), Y)

    return without(float_rows, *KINDS[kind].unread)


@T.inline
def each_row(compute, m, *buffers):
    """compute(*buffers, row) for all m rows, in parallel unless they are few."""
    if m <= SERIAL_ROWS:
        for row in T.serial(m):
            compute(*buffers, row)
    else:
        for row in T.parallel(m):
            compute(*buffers, row)
