"""Cosines and sines of rotary embeddings by position, grown as sequences get longer."""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.runtime.memory import zeroed

Floats = npt.NDArray[np.float32]
Numbers: TypeAlias = "array[int]"
FIRST_ROWS = 512


class RopeTable:
    """Rows float32 [2, head_dim/2]: cosines, then sines, of position * inverse frequency."""

    def __init__(self, inverse_frequencies: Floats, spare: int = 0) -> None:
        """spare: rows behind the others that are for whoever has asked for them."""
        self._inverse, self._spare = inverse_frequencies, spare
        self._grow(FIRST_ROWS)

    def reaching(self, length: int) -> Any:
        """A tensor float32 [at least `length`, 2, head_dim/2], a row a position."""
        if length > self._length:
            self._grow(max(length, 2 * self._length))
        return self._tensor

    @property
    def spare_rows(self) -> tuple[int, Floats]:
        """Where they begin now, and what is in them, to be written."""
        return self._length, self._rows[self._length :]

    def _grow(self, count: int) -> None:
        angle = np.arange(count, dtype=np.float32)[:, None] * self._inverse
        half = len(self._inverse)
        memory = zeroed(8 * half * (count + self._spare)).view(np.float32)
        table: Floats = memory.reshape(-1, 2, half)
        np.cos(angle, out=table[:count, 0])
        np.sin(angle, out=table[:count, 1])
        self._length, self._rows, self._tensor = count, table, tvm_ffi.from_dlpack(table)


class StreamedRope:
    """Rows for texts without end, whose table has one: positions behind `Window.far` get rows for
    the step alone.

    Their angles, each a position below 2^31 times a float32, are computed in float64: a distance
    is exact to 1e-6 wherever the text is. Each row is computed alone and in the same place, so its
    bits do not depend on the step that it is in.
    """

    def __init__(self, inverse_frequencies: Floats, far: int, most: int) -> None:
        """most: tokens of a step."""
        self._table, self._far = RopeTable(inverse_frequencies, spare=most), far
        self._frequencies = inverse_frequencies.astype(np.float64)
        self._angle = np.empty_like(self._frequencies)

    def rows(self, positions: Numbers) -> tuple[Any, Numbers]:
        """The table as a tensor, and which of its rows turn a step's tokens: those of all tokens,
        then those of their queries for sinks."""
        far, last = self._far, max(positions)
        tensor = self._table.reaching(min(last, far) + 1)
        if last <= far:
            return tensor, positions + positions
        start, spare = self._table.spare_rows
        own = array("i", positions)
        for i, position in enumerate(positions):
            if position > far:
                self._fill(spare[i], position)
                own[i] = start + i
        return tensor, own + array("i", [min(position, far) for position in positions])

    def _fill(self, row: Floats, position: int) -> None:
        np.multiply(self._frequencies, position, out=self._angle)
        np.cos(self._angle, out=row[0])
        np.sin(self._angle, out=row[1])
