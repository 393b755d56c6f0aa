"""The type of ggml's block formats: the bytes of a block, and how they are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.record import record

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Blocks = npt.NDArray[np.void]
"""[B] structures with the fields of a format's layout."""


@record()
class Grouped:
    """A weight [N, K], split into whole numbers and the scales of their groups. (Of 8-bit floats
    the whole numbers are their bytes.)

    q: uint8 [N, K]; each number fits in `bits` bits.
    scale, minimum: float32 [N, K // group]; minimum is None for symmetric formats.
    offset: subtracted from q first; 0 if there is a minimum.
    half: every scale and every minimum is exactly a float16.
    unit, minimum_unit: float32 [N, K // (span * group)] in formats where `span` neighbouring groups
    share them: scales and minima are whole numbers from -128 to 127 times these units, which are
    exactly float16; else None.
    """

    q: Bytes
    bits: Literal[4, 5, 6, 8]
    group: Literal[16, 32, 40]
    scale: Floats
    minimum: Floats | None
    offset: int
    half: bool
    unit: Floats | None = None
    minimum_unit: Floats | None = None


class Parts(NamedTuple):
    """B blocks, split: q [B, block], scale and minimum [B, groups in a block]. unit, minimum_unit:
    [B, 1], as in `Grouped`."""

    q: Bytes
    scale: Floats
    minimum: Floats | None = None
    unit: Floats | None = None
    minimum_unit: Floats | None = None


@record()
class BlockFormat:
    """A block format. `bits`, `group` and `offset` mean the same as in `Grouped`."""

    block: int
    """Values of a block."""
    layout: np.dtype[np.void]
    """The bytes of a block."""
    split: Callable[[Blocks], Parts]
    bits: Literal[4, 5, 6, 8]
    group: Literal[16, 32] = 32
    offset: int = 0
    levels: Floats | None = None
    """The number of each q, which the scale multiplies; None: q - offset."""

    @property
    def has_minimum(self) -> bool:
        return self.offset == 0


def layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[np.void]:
    return np.dtype(list(fields))


def nibbles(packed: Bytes, out: Bytes) -> None:
    """Unpack bytes [..., n] into out [..., 2, n]: all low halves, then all high halves."""
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])


def widened(column: Halves) -> Floats:
    """Widen float16 [B] to float32 [B, 1]."""
    return column.astype(np.float32)[:, None]


def lowered(column: Halves) -> Floats:
    """The same with the other sign."""
    wide = widened(column)
    return np.negative(wide, out=wide)
