"""Cosines and sines of rotary embeddings by position, grown as sequences get longer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class RopeTable:
    """Rows float32 [2, head_dim/2]: cosines, then sines, of position * inverse frequency."""

    def __init__(self, inverse_frequencies: Floats) -> None:
        self._inverse = inverse_frequencies
        self._table = self._rows(0, 512)

    def rows(self, positions: npt.NDArray[np.int32]) -> Floats:
        """float32 [m, 2, head_dim/2]."""
        needed = int(positions.max()) + 1
        if needed > len(self._table):
            more = self._rows(len(self._table), max(needed, 2 * len(self._table)))
            self._table = np.concatenate([self._table, more])
        return self._table[positions]

    def _rows(self, start: int, stop: int) -> Floats:
        angle = np.arange(start, stop, dtype=np.float32)[:, None] * self._inverse
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
