"""Reads scales and minima of a packed matrix, where they lie behind the words of each group.

W  int32 [n/32, groups, stride]   packed weights (`backends/cpu/formats.py`)

Fixed-point formats have whole numbers: `whole_at` reads a vector of them, and `unit_at` the units
that they count. Of a single row they are read as floats, with the unit.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.vectors import lanes_at
from mlc_llm.kernels.types import Buffer, Expr, Index

SCALES, MINIMA = 0, 1
"""Kinds of whole numbers of a fixed-point format."""


def scale_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, vector: Index, lanes: int
) -> Expr:
    """float32 scales of `lanes` rows of a column block, from row vector * lanes on."""
    return _floats(fmt, W, block, group, fmt.words * BLOCK, vector, lanes)


def minimum_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, vector: Index, lanes: int
) -> Expr | None:
    """float32 minima of the same rows; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _floats(fmt, W, block, group, fmt.words * BLOCK + fmt.scale_words, vector, lanes)


def scale_of(fmt: WeightFormat, W: Buffer, block: Index, group: Index, row: Index) -> Expr:
    """float32 scale of one row of a column block."""
    return _float(fmt, W, block, group, fmt.words * BLOCK, row)


def minimum_of(fmt: WeightFormat, W: Buffer, block: Index, group: Index, row: Index) -> Expr | None:
    """float32 minimum of one row of a column block; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _float(fmt, W, block, group, fmt.words * BLOCK + fmt.scale_words, row)


def whole_at(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, kind: int, vector: Index, lanes: int
) -> Expr:
    """int16 `SCALES` or `MINIMA` of a fixed-point format, of the rows of `scale_at`."""
    start = fmt.words * BLOCK + kind * fmt.scale_words + vector * (lanes // 2)
    return T.reinterpret(W[block, group, lanes_at(start, lanes // 2)], dtype=f"int16x{lanes}")


def unit_at(W: Buffer, block: Index, start: Index, lanes: int) -> Expr:
    """float32 units of a fixed-point format, of `lanes` rows of a column block from `start` on."""
    words = W[block, int(W.shape[1]) - 1, lanes_at(start, lanes)]
    return T.reinterpret(words, dtype=f"float32x{lanes}")


def _floats(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, start: int, vector: Index, lanes: int
) -> Expr:
    """A vector of the scales or minima that begin at word `start` of a group."""
    if fmt.scale_dtype == "float32":
        words = W[block, group, lanes_at(start + vector * lanes, lanes)]
        return T.reinterpret(words, dtype=f"float32x{lanes}")
    words = W[block, group, lanes_at(start + vector * (lanes // 2), lanes // 2)]
    return T.cast(T.reinterpret(words, dtype=f"float16x{lanes}"), f"float32x{lanes}")


def _float(
    fmt: WeightFormat, W: Buffer, block: Index, group: Index, start: int, row: Index
) -> Expr:
    """One of the scales or minima that begin at word `start` of a group."""
    if fmt.scale_dtype == "float32":
        return T.reinterpret(W[block, group, start + row], dtype="float32")
    half = T.shift_right(W[block, group, start + row // 2], row % 2 * 16)
    if fmt.is_fixed_point:
        unit = T.reinterpret(W[block, int(W.shape[1]) - 1, row], dtype="float32")
        return T.cast(T.cast(half, "int16"), "float32") * unit
    return T.cast(T.reinterpret(T.cast(half, "int16"), dtype="float16"), "float32")
