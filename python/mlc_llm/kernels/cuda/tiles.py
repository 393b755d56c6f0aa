"""Where a weight, its scale and its minimum lie in a packed tensor (`backends/cuda/formats.py`)."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cuda.formats import (
    BLOCK,
    GROUP,
    PART_WORDS,
    UNIT_WORDS,
    WeightFormat,
)
from mlc_llm.kernels.types import Buffer, Expr, Index

SCALE, MINIMUM = 0, 1
_BYTE = 24
"""A byte that is shifted so far up keeps its sign on the way down."""


def word_at(fmt: WeightFormat, table: Buffer, block: Expr, tile: Expr, word: Index) -> Expr:
    """A word of a tile."""
    span = fmt.span
    if span == 1:
        return table[block, tile, word]
    return table[block, tile // span, fmt.unit_words + tile % span * fmt.stride + word]


def unit_at(fmt: WeightFormat, table: Buffer, block: Expr, tile: Expr, word: Index) -> Expr:
    """A word of the units of a tile's span."""
    return table[block, tile // fmt.span, word]


def value(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """The whole number of a weight, int32; of 8-bit floats the byte."""
    place = row % BLOCK
    step, t, pair = _parts_of(fmt, column)
    thread, half, h = place % 8 * 4 + t, place // 16, place % 16 // 8
    word = thread * 4 + half * 2 + step
    block, tile = row // BLOCK, column // GROUP
    if fmt.bits == 8:
        bits = word_at(fmt, table, block, tile, word + pair * PART_WORDS)
        return _field(bits, h * 8 + column % 2 * 16, 8)
    bits = word_at(fmt, table, block, tile, word)
    low = _field(bits, (pair * 2 + h) * 4 + column % 2 * 16, 4)
    if not fmt.high_bits:
        return low
    several = fmt.high_bits
    above = thread if several == 1 else thread * 2 + half
    at = step * 4 + pair * 2 + h + (half * 8 if several == 1 else 0)
    bits = word_at(fmt, table, block, tile, fmt.high_start + above)
    return low + _field(bits, at * several + column % 2 * 16, several) * 16


def _parts_of(fmt: WeightFormat, column: Expr) -> tuple[Expr, Expr, Expr]:
    """step, t and pair of a column."""
    at = column % GROUP
    if fmt.group == GROUP:
        return at % 8 // 4, at // 8, at % 4 // 2
    return at // 16, at % 16 // 4, at % 4 // 2


def _field(word: Expr, start: Expr, bits: int) -> Expr:
    """int32: so many bits of a word."""
    shifted = T.shift_right(word, T.cast(start, "uint32"))
    return T.cast(T.bitwise_and(shifted, T.uint32((1 << bits) - 1)), "int32")


def scale(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr, kind: int) -> Expr:
    """float32: the scale of a weight (SCALE), or its minimum."""
    place, block, tile = row % BLOCK, row // BLOCK, column // GROUP
    half, h, g = place // 16, place % 16 // 8, place % 8
    group = 0 if fmt.groups == 1 else column % GROUP // fmt.group
    start = (kind * fmt.groups + group) * fmt.scale_words + fmt.scale_start
    if fmt.scales == "float32":
        word = word_at(fmt, table, block, tile, start + g * 4 + half * 2 + h)
        return T.reinterpret(word, dtype="float32")
    if fmt.scales == "float16":
        return half_of(word_at(fmt, table, block, tile, start + g * 2 + half), h)
    unit = unit_at(fmt, table, block, tile, kind * UNIT_WORDS + g * 2 + half)
    return byte_of(word_at(fmt, table, block, tile, start + g), half * 2 + h) * half_of(unit, h)


def half_of(word: Expr, number: Index) -> Expr:
    """float32: the float16 in the low (0) or high (1) half of a word."""
    bits = T.shift_right(word, T.cast(number * 16, "uint32"))
    return T.cast(T.reinterpret(T.cast(bits, "uint16"), dtype="float16"), "float32")


def byte_of(word: Expr, number: Index) -> Expr:
    """float32: the whole number in a byte of a word, which has a sign."""
    up = T.reinterpret(T.shift_left(word, T.cast(_BYTE - number * 8, "uint32")), dtype="int32")
    return T.cast(T.shift_right(up, T.int32(_BYTE)), "float32")


def weight(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """A weight as float32."""
    unit = scale(fmt, table, row, column, SCALE)
    if fmt.is_float:
        return _float(fmt, table, row, column) * unit
    q = value(fmt, table, row, column)
    if fmt.float8:
        return _float8(q) * unit
    if fmt.has_minimum:
        return T.cast(q, "float32") * unit + scale(fmt, table, row, column, MINIMUM)
    return T.cast(q - T.int32(fmt.offset), "float32") * unit


def _float8(byte: Expr) -> Expr:
    """The number of a byte of E4M3, but for those that are none: as a float16 it is 2^-8 times
    that, because the exponent there is 8 higher for the same number."""
    sign = T.shift_left(T.bitwise_and(byte, T.int32(0x80)), T.int32(8))
    rest = T.shift_left(T.bitwise_and(byte, T.int32(0x7F)), T.int32(7))
    bits = T.cast(T.bitwise_or(sign, rest), "uint16")
    return T.cast(T.reinterpret(bits, dtype="float16"), "float32") * T.float32(256)


def _float(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """A weight divided by its scale: the sum of its planes."""
    place, at = row % BLOCK, column % GROUP
    thread, part = place % 8 * 4 + at // 8, place // 16 * 2 + at % 8 // 4
    word = part * PART_WORDS + thread * 4 + at % 4 // 2 * 2 + place % 16 // 8
    planes = [
        half_of(table[row // BLOCK, column // GROUP, word + 4 * PART_WORDS * plane], at % 2)
        for plane in range(fmt.planes)
    ]
    return planes[0] if len(planes) == 1 else planes[0] + planes[1]
