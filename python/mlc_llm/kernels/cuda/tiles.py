"""Where a weight, its scale and its minimum lie in a packed tensor (`backends/cuda/formats.py`)."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, PART_WORDS, SCALE_WORDS, WeightFormat
from mlc_llm.kernels.types import Buffer, Expr

SCALE, MINIMUM = 0, 1


def value(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """The whole number of a weight, int32."""
    place, at = row % BLOCK, column % GROUP
    thread, pair = place % 8 * 4 + at // 8, at % 4 // 2
    word = thread * 4 + place // 16 * 2 + at % 8 // 4
    shift = place % 16 // 8 * fmt.bits + at % 2 * 16
    if fmt.bits == 8:
        word = word + pair * PART_WORDS
    else:
        shift = shift + pair * 8
    bits = T.shift_right(table[row // BLOCK, column // GROUP, word], T.cast(shift, "uint32"))
    return T.cast(T.bitwise_and(bits, T.uint32((1 << fmt.bits) - 1)), "int32")


def scale(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr, kind: int) -> Expr:
    """float32: the scale of a weight (SCALE), or its minimum."""
    place = row % BLOCK
    word = fmt.scale_start + kind * SCALE_WORDS + place % 8 * 2 + place // 16
    return half_of(table[row // BLOCK, column // GROUP, word], place % 16 // 8)


def half_of(word: Expr, number: Expr | int) -> Expr:
    """float32: the float16 in the low (0) or high (1) half of a word."""
    bits = T.shift_right(word, T.cast(number * 16, "uint32"))
    return T.cast(T.reinterpret(T.cast(bits, "uint16"), dtype="float16"), "float32")


def weight(fmt: WeightFormat, table: Buffer, row: Expr, column: Expr) -> Expr:
    """A weight as float32."""
    if fmt.is_float:
        return _float(fmt, table, row, column) * scale(fmt, table, row, column, SCALE)
    q, unit = value(fmt, table, row, column), scale(fmt, table, row, column, SCALE)
    if fmt.has_minimum:
        return T.cast(q, "float32") * unit + scale(fmt, table, row, column, MINIMUM)
    return T.cast(q - T.int32(fmt.offset), "float32") * unit


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
