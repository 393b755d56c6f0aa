"""Reads the words of a packed matrix, and the scales and minima that lie behind them.

W  int32 [n/32, groups / span, stride]   packed weights (`backends/cpu/formats.py`)

In formats with spans a scale is a whole number times the unit of its span. Fixed-point formats have
whole numbers: `whole_at` reads a vector of them, and `unit_at` the units that they count. Of a
single row they are read as floats, with the unit.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, UNIT_WORDS, WeightFormat
from mlc_llm.kernels.cpu.vectors import lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index

SCALES, MINIMA = 0, 1
"""Kinds of numbers that a group has beside its values."""


def group_start(fmt: WeightFormat, group: Index) -> Index:
    """Where a group of columns begins in its span, with its words."""
    return fmt.unit_words + group % fmt.span * fmt.group_stride


def weight_words(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, start: Index, lanes: int
) -> Callable[[Index], Expr]:
    """The words of `lanes` rows of a column block, from row `start` on, in a group, by their
    number."""

    def word(j: Index) -> Expr:
        at = group_start(fmt, group) + j * BLOCK + start
        return W[block, group // fmt.span, lanes_at(at, lanes)]

    return word


def scale_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, vector: Index, lanes: int
) -> Expr:
    """float32 scales of `lanes` rows of a column block, from row vector * lanes on."""
    return _floats(fmt, W, block, group, SCALES, vector, lanes)


def minimum_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, vector: Index, lanes: int
) -> Expr | None:
    """float32 minima of the same rows; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _floats(fmt, W, block, group, MINIMA, vector, lanes)


def scale_of(fmt: WeightFormat, W: Buffer, block: Index, group: Index, row: Index) -> Expr:
    """float32 scale of one row of a column block."""
    return _float(fmt, W, block, group, SCALES, row)


def minimum_of(fmt: WeightFormat, W: Buffer, block: Index, group: Index, row: Index) -> Expr | None:
    """float32 minimum of one row of a column block; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _float(fmt, W, block, group, MINIMA, row)


def whole_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, kind: int, vector: Index, lanes: int
) -> Expr:
    """int16 `SCALES` or `MINIMA` of a fixed-point format, of the rows of `scale_at`."""
    start = fmt.scale_start(kind) + vector * (lanes // 2)
    return T.reinterpret(W[block, group, lanes_at(start, lanes // 2)], dtype=f"int16x{lanes}")


def unit_at(W: Buffer, block: Index, start: Index, lanes: int) -> Expr:
    """float32 units of a fixed-point format, of `lanes` rows of a column block from `start` on."""
    words = W[block, int(W.shape[1]) - 1, lanes_at(start, lanes)]
    return T.reinterpret(words, dtype=f"float32x{lanes}")


def _floats(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, kind: int, vector: Index, lanes: int
) -> Expr:
    """A vector of the scales or minima of a group."""
    span = group // fmt.span
    start = group_start(fmt, group) + fmt.scale_start(kind)
    if fmt.scale_dtype == "float32":
        words = W[block, span, lanes_at(start + vector * lanes, lanes)]
        return T.reinterpret(words, dtype=f"float32x{lanes}")
    if fmt.span == 1:
        return _halves(W, block, span, start, vector, lanes)
    at = start + vector * (lanes // 4)
    octets = W[block, span, at if lanes == 4 else lanes_at(at, lanes // 4)]
    whole = T.cast(T.reinterpret(octets, dtype=f"int8x{lanes}"), f"float32x{lanes}")
    return whole * _halves(W, block, span, kind * UNIT_WORDS, vector, lanes)


def _halves(W: Buffer, block: Index, span: Index, start: Index, vector: Index, lanes: int) -> Expr:
    """A vector of the float16 numbers of 32 rows that begin at word `start`."""
    words = W[block, span, lanes_at(start + vector * (lanes // 2), lanes // 2)]
    return T.cast(T.reinterpret(words, dtype=f"float16x{lanes}"), f"float32x{lanes}")


def _float(fmt: WeightFormat, W: Buffer, block: Index, group: Index, kind: int, row: Index) -> Expr:
    """One of the scales or minima of a group."""
    span = group // fmt.span
    start = group_start(fmt, group) + fmt.scale_start(kind)
    if fmt.scale_dtype == "float32":
        return T.reinterpret(W[block, span, start + row], dtype="float32")
    if fmt.span > 1:
        octet = T.shift_right(W[block, span, start + row // 4], row % 4 * 8)
        unit = _half(W, block, span, kind * UNIT_WORDS, row)
        return T.cast(T.cast(octet, "int8"), "float32") * T.cast(
            T.reinterpret(unit, dtype="float16"), "float32"
        )
    half = _half(W, block, span, start, row)
    if fmt.is_fixed_point:
        unit = T.reinterpret(W[block, int(W.shape[1]) - 1, row], dtype="float32")
        return T.cast(half, "float32") * unit
    return T.cast(T.reinterpret(half, dtype="float16"), "float32")


def _half(W: Buffer, block: Index, span: Index, start: Index, row: Index) -> Expr:
    """The int16 of a row, of those of 32 rows that begin at word `start`."""
    return T.cast(T.shift_right(W[block, span, start + row // 2], row % 2 * 16), "int16")
