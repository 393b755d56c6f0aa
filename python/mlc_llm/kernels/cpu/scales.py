"""Scales and minima out of a packed matrix, where they lie behind the words of each group.

Those of fixed-point formats are read as integers where whole vectors are wanted (`fixed_at`), and
as floats, units included, of a single row.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu.vectors import lanes_at


def scale_at(fmt: WeightFormat, w: Any, block: Any, g: Any, vector: Any, lanes: int) -> Any:
    """float32 scales of rows vector * lanes and on in a block."""
    return _floats(fmt, w, (block, g), fmt.words * BLOCK, vector, lanes)


def minimum_at(fmt: WeightFormat, w: Any, block: Any, g: Any, vector: Any, lanes: int) -> Any:
    """float32 minima likewise; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _floats(fmt, w, (block, g), fmt.words * BLOCK + fmt.scale_words, vector, lanes)


def scale_of(fmt: WeightFormat, w: Any, block: Any, g: Any, row: Any) -> Any:
    """float32 scale of one row of a block."""
    return _float(fmt, w, (block, g), fmt.words * BLOCK, row)


def minimum_of(fmt: WeightFormat, w: Any, block: Any, g: Any, row: Any) -> Any:
    """float32 minimum of one row of a block; None where the format has none."""
    if not fmt.has_minimum:
        return None
    return _float(fmt, w, (block, g), fmt.words * BLOCK + fmt.scale_words, row)


def fixed_at(fmt: WeightFormat, w: Any, at: Any, kind: int, vector: Any, lanes: int) -> Any:
    """int16 lanes: scales (kind 0) or minima (kind 1) of rows vector * lanes and on; at: block and
    group."""
    start = fmt.words * BLOCK + kind * fmt.scale_words + vector * (lanes // 2)
    return T.reinterpret(w[at[0], at[1], lanes_at(start, lanes // 2)], dtype=f"int16x{lanes}")


def units_at(w: Any, block: Any, start: Any, lanes: int) -> Any:
    """float32 units of a fixed-point block's rows from `start` on."""
    words = w[block, int(w.shape[1]) - 1, lanes_at(start, lanes)]
    return T.reinterpret(words, dtype=f"float32x{lanes}")


def _floats(fmt: WeightFormat, w: Any, at: Any, start: int, vector: Any, lanes: int) -> Any:
    if fmt.scale_dtype == "float32":
        words = w[at[0], at[1], lanes_at(start + vector * lanes, lanes)]
        return T.reinterpret(words, dtype=f"float32x{lanes}")
    words = w[at[0], at[1], lanes_at(start + vector * (lanes // 2), lanes // 2)]
    return T.cast(T.reinterpret(words, dtype=f"float16x{lanes}"), f"float32x{lanes}")


def _float(fmt: WeightFormat, w: Any, at: Any, start: int, row: Any) -> Any:
    if fmt.scale_dtype == "float32":
        return T.reinterpret(w[at[0], at[1], start + row], dtype="float32")
    half = T.shift_right(w[at[0], at[1], start + row // 2], row % 2 * 16)
    if fmt.is_fixed:
        unit = T.reinterpret(w[at[0], int(w.shape[1]) - 1, row], dtype="float32")
        return T.cast(T.cast(half, "int16"), "float32") * unit
    return T.cast(T.reinterpret(T.cast(half, "int16"), dtype="float16"), "float32")
