"""What a block format of ggml is: the bytes of a block, and how they come apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grouped:
    """A weight [N, K] taken apart into whole numbers and the scales of their groups.

    q: uint8 [N, K]; each fits in `bits` bits.
    scale, minimum: float32 [N, K // group]; minimum is None for symmetric formats.
    offset: what to take from q first; 0 where there is a minimum.
    half: every scale and minimum is exactly a float16.
    """

    q: Bytes
    bits: Literal[4, 8]
    group: Literal[16, 32]
    scale: Floats
    minimum: Floats | None
    offset: int
    half: bool


class Parts(NamedTuple):
    """Some blocks taken apart: q [B, block], scale and minimum [B, groups in a block]."""

    q: Bytes
    scale: Floats
    minimum: Floats | None = None


@dataclass(frozen=True)
class BlockFormat:
    """A block format; `bits`, `group` and `offset` are as in `Grouped`."""

    block: int
    """Values of a block."""
    layout: np.dtype[Any]
    """The bytes of a block."""
    split: Callable[[Any], Parts]
    bits: Literal[4, 8]
    group: Literal[16, 32] = 32
    offset: int = 0

    @property
    def has_minimum(self) -> bool:
        return self.offset == 0


def layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype(list(fields))


def nibbles(packed: Bytes, out: Bytes) -> None:
    """packed [..., n] to out [..., 2, n]: the low halves of the bytes, then the high ones."""
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])


def widened(column: Any) -> Floats:
    """float16 [B] to float32 [B, 1]."""
    wide: Floats = column.astype(np.float32)[:, None]
    return wide
