"""Rows of a packed embedding table as float32.

    for each token:                           in parallel where they are many
        for each weight group g, for each word j of it, for each value in the word:
            y = (q * scale + minimum, or (q - offset) * scale) * factor

tokens    int32 [m]: rows of the table
table     the packed table, [n / 32, spans, stride] (see `backends/cpu/formats.py`); of floats
          [n / 32, k, 32], of bfloat16 [n / 32, k / 2, 32]
y         float32 [m, k]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.kernels.cpu.float8 import e4m3
from mlc_llm.kernels.cpu.float_matmul import upper_half
from mlc_llm.kernels.cpu.scales import group_start, minimum_of, scale_of
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.types import Buffer, Expr

MANY = 64
"""Tokens from which on a second thread is worth its wake-up."""


@cache
def embedding(n: int, k: int, fmt: WeightFormat, scale: float = 1.0) -> PrimFunc:
    """Kernel arguments: tokens, table (n rows), y. The rows are multiplied by `scale`."""
    shape, dtype = tensor_shape(fmt, n, k)
    one_row = _float_row if fmt.is_float else _packed_row

    @T.prim_func(private=True, s_tir=True)
    def embedded_rows(tokens: T.handle, table: T.Buffer(shape, dtype), y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        I = T.match_buffer(tokens, (m,), "int32")
        Y = T.match_buffer(y, (m, k), "float32")
        with T.sblock("root"):
            if m >= MANY:
                for row in T.parallel(m):
                    one_row(fmt, k, scale, I, table, Y, row)
            else:
                for row in T.serial(m):
                    one_row(fmt, k, scale, I, table, Y, row)

    return embedded_rows


def _times(value: Expr, factor: float) -> Expr:
    """value * factor; nothing is computed for a factor of 1."""
    return value if factor == 1.0 else value * T.float32(factor)


def _value(
    fmt: WeightFormat, table: Buffer, row: Expr, g: Expr, j: Expr, part: Expr, byte: Expr
) -> Expr:
    """The value in that half (of 4 bits) and byte of word j of group g of a row."""
    block, place = row // BLOCK, row % BLOCK
    scale = scale_of(fmt, table, block, g, place)
    q = _whole(fmt, table, row, g, j, part, byte)
    minimum = minimum_of(fmt, table, block, g, place)
    if fmt.float8:
        return e4m3(q, 1) * scale
    if minimum is not None:
        return T.cast(q, "float32") * scale + minimum
    return T.cast(q - T.int32(fmt.offset), "float32") * scale


def _whole(
    fmt: WeightFormat, table: Buffer, row: Expr, g: Expr, j: Expr, part: Expr, byte: Expr
) -> Expr:
    """The whole number behind a value."""

    def taken(word: Expr | int, start: Expr, bits: int) -> Expr:
        at = group_start(fmt, g) + word * BLOCK + row % BLOCK
        shifted = T.shift_right(table[row // BLOCK, g // fmt.span, at], start)
        return T.bitwise_and(shifted, T.int32((1 << bits) - 1))

    low = taken(fmt.high_words + j, byte * 8 + part * 4, 8 // fmt.parts)
    if not fmt.high_bits:
        return low
    start = byte * 8 + fmt.high_bits * (j + part * fmt.low_words)
    return low | T.shift_left(taken(0, start, fmt.high_bits), T.int32(4))


@T.inline
def _packed_row(fmt, k, factor, I, table, Y, row):
    """A token's row of integers."""
    for g in T.serial(k // fmt.group):
        for j in T.serial(fmt.low_words):
            for part in T.unroll(fmt.parts):
                for byte in T.unroll(4):
                    Y[row, g * fmt.group + fmt.group // 4 * byte + part * fmt.low_words + j] = (
                        _times(_value(fmt, table, I[row], g, j, part, byte), factor)
                    )


def _float(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """A value of a table of floats."""
    if not fmt.is_bfloat:
        return T.cast(table[row // BLOCK, column, row % BLOCK], "float32")
    word = table[row // BLOCK, column // 2, row % BLOCK]
    return T.reinterpret(upper_half(word, column), dtype="float32")


@T.inline
def _float_row(fmt, k, factor, I, table, Y, row):
    """A token's row of floats."""
    for i in T.serial(k):
        Y[row, i] = _times(_float(fmt, table, I[row], i), factor)
