"""Arrays on their way into compiled code."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tvm_ffi

from mlc_llm.runtime.memory import zeroed

Array = npt.NDArray[Any]
ALIGNMENT = 64
"""Bytes: compiled code loads whole vectors."""


class Staging:
    """One aligned block that every step's small arrays are copied into.

    A tensor made by `tvm.runtime.tensor` costs ten times as much as the copy itself.
    """

    def __init__(self) -> None:
        self._block = zeroed(1 << 20)

    def tensors(self, *arrays: Array) -> list[Any]:
        """A tensor of each array's values; they are good until the next call."""
        starts = [0]
        for array in arrays:
            starts.append(starts[-1] + array.nbytes + -array.nbytes % ALIGNMENT)
        if starts[-1] > len(self._block):
            self._block = zeroed(2 * starts[-1])
        return [self._tensor(start, array) for start, array in zip(starts, arrays, strict=False)]

    def _tensor(self, start: int, array: Array) -> Any:
        room = self._block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        room[...] = array
        return tvm_ffi.from_dlpack(room)
