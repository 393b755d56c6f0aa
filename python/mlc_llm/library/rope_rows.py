"""The table of a rotary embedding: cosines and sines by position.

Packed weights have the first rows, so that a short text needs no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

Floats: TypeAlias = "npt.NDArray[np.float32]"


def rope_rows(inverse_frequencies: Floats, magnitude: float, count: int, spare: int = 0) -> Floats:
    """float32 [count + spare, 2, dim/2]: of each position its cosines, then its sines, of position
    * inverse frequency, times the magnitude; and zeros."""
    angle = np.arange(count, dtype=np.float32)[:, None] * inverse_frequencies
    table: Floats = np.zeros((count + spare, 2, len(inverse_frequencies)), np.float32)
    np.cos(angle, out=table[:count, 0])
    np.sin(angle, out=table[:count, 1])
    if magnitude != 1.0:
        table[:count] *= np.float32(magnitude)
    return table
