"""Cosines and sines of rotary embeddings by position, grown as sequences get longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.runtime.memory import zeroed

Floats = npt.NDArray[np.float32]
FIRST_ROWS = 512


class RopeTable:
    """Rows float32 [2, head_dim/2]: cosines, then sines, of position * inverse frequency."""

    def __init__(self, inverse_frequencies: Floats) -> None:
        self._inverse = inverse_frequencies
        self._length, self._tensor = FIRST_ROWS, self._rows(FIRST_ROWS)

    def reaching(self, length: int) -> Any:
        """A tensor float32 [at least `length`, 2, head_dim/2], a row a position."""
        if length > self._length:
            self._length = max(length, 2 * self._length)
            self._tensor = self._rows(self._length)
        return self._tensor

    def _rows(self, count: int) -> Any:
        angle = np.arange(count, dtype=np.float32)[:, None] * self._inverse
        memory = zeroed(2 * angle.nbytes).view(np.float32)
        table: Floats = memory.reshape(count, 2, len(self._inverse))
        np.cos(angle, out=table[:, 0])
        np.sin(angle, out=table[:, 1])
        return tvm_ffi.from_dlpack(table)
