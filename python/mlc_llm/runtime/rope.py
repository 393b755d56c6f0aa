"""Cosines and sines of rotary embeddings by position, grown as sequences get longer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tvm_ffi

from mlc_llm.library.metadata import FIRST_ROWS
from mlc_llm.library.rope_rows import Floats, rope_rows
from mlc_llm.support.host_array import HostArray

if TYPE_CHECKING:
    import numpy as np

    from mlc_llm.backends.device import Device, DeviceTensor
else:
    from mlc_llm.later_numpy import np

Numbers: TypeAlias = "array[int]"
MAX_LENGTH = 2**31


class Rotation(NamedTuple):
    """What a rotary embedding is at run time (see `RopeSpec`)."""

    inverse_frequencies: HostArray
    """float32 [dim/2]."""
    magnitude: float
    """Rotated elements are multiplied by this."""
    rows: HostArray
    """float32 [n, 2, dim/2]: of the first positions (`library/rope_rows.py`)."""

    @classmethod
    def of(cls, inverse_frequencies: Floats, magnitude: float = 1.0) -> Rotation:
        """Without packed weights."""
        rows = rope_rows(inverse_frequencies, magnitude, FIRST_ROWS)
        return cls(HostArray.of(inverse_frequencies), magnitude, HostArray.of(rows))


class RopeTable:
    """Rows float32 [2, dim/2], as `rope_rows` makes them. No row ever changes its bits."""

    def __init__(self, rotation: Rotation, device: Device, spare: int = 0) -> None:
        """spare: rows behind the others that are for whoever has asked for them."""
        self._rotation, self._device, self._spare = rotation, device, spare
        self.length = rotation.rows.shape[0]
        """Rows that are there, without the spare ones."""
        if spare:
            self._grow(self.length)
        else:
            self._tensor = device.upload(rotation.rows)

    def reaching(self, length: int) -> DeviceTensor:
        """A tensor float32 [at least `length`, 2, dim/2], a row a position."""
        if length > self.length:
            self._grow(max(length, 2 * self.length))
        return self._tensor

    def fill(self, i: int, row: Floats) -> int:
        """Writes the i-th of the spare rows; where it is."""
        self._device.write(self._tensor, self.length + i, row)
        return self.length + i

    def _grow(self, count: int) -> None:
        inverse, magnitude, first = self._rotation
        table = rope_rows(inverse.numpy(), magnitude, count, self._spare)
        table[: len(first.numpy())] = first.numpy()
        self.length, self._tensor = count, self._device.upload(table)


class RopeTables:
    """The tables of all rotary embeddings of a model, which grow together.

    With a sliding window a text has no end, but the tables have one: positions behind `Window.far`
    get rows for the step alone. Their angles, each a position below 2^31 times a float32, are
    computed in float64: a distance is exact to 1e-6 wherever the text is. Each row is computed
    alone and in the same place, so its bits do not depend on the step that it is in.
    """

    def __init__(
        self,
        rotations: Sequence[Rotation],
        device: Device,
        *,
        far: int | None = None,
        step_tokens: int = 0,
    ) -> None:
        """far: of the window, if there is one; step_tokens: at most, with a window."""
        self._far = far
        self._tables = [RopeTable(one, device, spare=step_tokens) for one in rotations]
        self._rotations = rotations
        self._length = 0
        self._tensors = self._reaching(1)

    def rows(self, positions: Numbers) -> tuple[Sequence[DeviceTensor], Numbers, Numbers]:
        """The tables as tensors, and which of their rows turn a step's tokens and which turn their
        queries for sinks."""
        far, last = self._far, max(positions)
        if far is None or last <= far:
            return self._reaching(last + 1), positions, positions
        tensors = self._reaching(far + 1)
        own = array("i", positions)
        for i, position in enumerate(positions):
            if position > far:
                own[i] = self._fill(i, position)
        return tensors, own, array("i", [min(position, far) for position in positions])

    def _reaching(self, length: int) -> Sequence[DeviceTensor]:
        if length > self._length:  # else nothing has changed since the last step
            self._tensors = tvm_ffi.Array([table.reaching(length) for table in self._tables])
            self._length = min((table.length for table in self._tables), default=MAX_LENGTH)
        return self._tensors

    def _fill(self, i: int, position: int) -> int:
        """Writes the i-th spare row of each table; where they are."""
        place = 0
        for table, (frequencies, magnitude, _) in zip(self._tables, self._rotations, strict=True):
            angle = frequencies.numpy().astype(np.float64) * position
            row = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
            place = table.fill(i, row if magnitude == 1.0 else row * np.float32(magnitude))
        return place
