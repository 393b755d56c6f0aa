"""Copies the numbers of a step to where compiled code reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import tvm_ffi

from mlc_llm.backends.cpu.memory import zeroed

if TYPE_CHECKING:
    from mlc_llm.backends.device import Table

_Shapes: TypeAlias = "list[tuple[str, int, int]]"
"""Type, count and row of each table."""
ALIGNMENT = 64
"""Bytes: compiled code loads whole vectors."""
_TYPES = {"i": "int32", "f": "float32"}
FIRST_SIZE = 1 << 16
"""Bytes that there is room for at first."""


class HostStaging:
    """See `backends.device.Staging`: one aligned block that each step's few numbers are copied to.

    Its tensors are kept while their shapes stay, as they do from one decoded token to the next.
    Copying uses no NumPy: a step empties the processor's caches, so that little code is fast code.
    """

    def __init__(self) -> None:
        self._block = zeroed(FIRST_SIZE)
        self._shapes: _Shapes = []
        self._views: list[memoryview] = []
        self._tensors: list[tvm_ffi.Tensor] = []

    def tensors(self, *tables: Table) -> list[tvm_ffi.Tensor]:
        """A tensor of each table's values. The next call overwrites them."""
        shapes: _Shapes = [(numbers.typecode, len(numbers), width) for numbers, width in tables]
        if shapes != self._shapes:
            self._lay_out(shapes)
        for view, (numbers, _) in zip(self._views, tables, strict=True):
            view[:] = numbers
        return self._tensors

    def _lay_out(self, shapes: _Shapes) -> None:
        """Gives each table its part of the block, and makes the block larger if need be."""
        starts = [0]
        for _, count, _ in shapes:
            starts.append(starts[-1] + 4 * count + -4 * count % ALIGNMENT)
        same = _alike(shapes, self._shapes)
        if starts[-1] > self._block.nbytes:
            self._block, same = zeroed(2 * starts[-1]), 0
        rooms = [
            self._block.seen_as(_TYPES[code], (count // width, width) if width else (count,), start)
            for start, (code, count, width) in zip(starts[same:], shapes[same:], strict=False)
        ]
        self._views = [*self._views[:same], *(room.numbers() for room in rooms)]
        self._tensors = [*self._tensors[:same], *map(tvm_ffi.from_dlpack, rooms)]
        self._shapes = shapes


def _alike(shapes: _Shapes, others: _Shapes) -> int:
    """How many of the first are the same."""
    differing = (
        i for i, pair in enumerate(zip(shapes, others, strict=False)) if pair[0] != pair[1]
    )
    return next(differing, min(len(shapes), len(others)))
