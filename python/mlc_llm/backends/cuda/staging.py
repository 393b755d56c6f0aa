"""Takes numbers of the host to the GPU, through memory that the GPU reads itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import tvm_ffi

from mlc_llm.backends.cuda.runtime import TO_DEVICE, Event, Runtime
from mlc_llm.backends.cuda.tensors import gpu_tensor, part_of

if TYPE_CHECKING:
    from mlc_llm.backends.device import Table

ALIGNMENT = 64
"""Bytes: compiled code takes no tensor that begins elsewhere."""
FIRST_SIZE = 1 << 16
"""Bytes of a step's numbers that there is room for at first."""
_Shapes: TypeAlias = "list[tuple[str, int, int]]"
"""Type, count and row of each table."""


def current_stream() -> int:
    """The stream that TVM launches kernels on."""
    return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))


class Half:
    """A half of a `Ring`."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self._memory, self._copied = runtime.pinned(size), Event(runtime)
        self._runtime, self._is_used = runtime, False
        self.view = self._memory.view()

    def ready(self) -> Half:
        """Waits until what was sent from here has arrived."""
        if self._is_used:
            self._copied.wait()
        return self

    def send(self, to: int, size: int) -> None:
        """Copies the first bytes to the GPU, in the order of TVM's stream."""
        stream = current_stream()
        self._runtime.copy(to, self._memory.start, size, TO_DEVICE, stream)
        self._copied.record(stream)
        self._is_used = True


class Ring:
    """Two blocks of pinned memory: one is filled while the GPU reads the other."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.size = size
        self._halves = Half(runtime, size), Half(runtime, size)
        self._turn = 0

    def half(self) -> tuple[int, Half]:
        """The next one, and its number."""
        self._turn = 1 - self._turn
        return self._turn, self._halves[self._turn].ready()

    def view(self, number: int) -> memoryview:
        return self._halves[number].view


class _Place(NamedTuple):
    """Of a table, in bytes."""

    start: int
    end: int
    typecode: str


class PinnedStaging:
    """See `backends.device.Staging`: one copy a step. Tensors are kept while their shapes stay."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._shapes, self._end = runtime, _no_shapes(), 0
        self._tensors: list[tvm_ffi.Tensor] = []
        self._views: list[list[memoryview[Any]]] = []
        self._grow(FIRST_SIZE)

    def tensors(self, *tables: Table) -> list[tvm_ffi.Tensor]:
        """A tensor of each table's values. The next call overwrites them."""
        shapes: _Shapes = [(numbers.typecode, len(numbers), width) for numbers, width in tables]
        if shapes != self._shapes:
            self._lay_out(shapes)
        number, half = self._ring.half()
        for view, (numbers, _) in zip(self._views[number], tables, strict=True):
            view[:] = memoryview(numbers)
        if self._end:
            half.send(self._block.data_ptr(), self._end)
        return self._tensors

    def _lay_out(self, shapes: _Shapes) -> None:
        """Gives each table its part of the block, and makes the block larger if need be."""
        self._shapes = _no_shapes()  # if this fails, the next call begins anew
        places, end = [], 0
        for code, count, _ in shapes:
            places.append(_Place(end, end + 4 * count, code))
            end += 4 * count + -4 * count % ALIGNMENT
        if end > self._ring.size:
            self._grow(2 * end)
        self._views = [[_part(self._ring.view(i), one) for one in places] for i in range(2)]
        self._tensors = [
            self._view(place.start, shape) for place, shape in zip(places, shapes, strict=True)
        ]
        self._end, self._shapes = end, shapes

    def _view(self, start: int, shape: tuple[str, int, int]) -> tvm_ffi.Tensor:
        """The part of the GPU's block that begins with a byte."""
        code, count, width = shape
        dims = (count // width, width) if width else (count,)
        return part_of(self._block, start, dims, "int32" if code == "i" else "float32")

    def _grow(self, size: int) -> None:
        self._ring = Ring(self._runtime, size)
        self._block = gpu_tensor(self._runtime, (size,), "uint8")


def _no_shapes() -> _Shapes:
    return [("", -1, 0)]


def _part(view: memoryview, place: _Place) -> memoryview[Any]:
    part = view[place.start : place.end]
    return part.cast("i") if place.typecode == "i" else part.cast("f")
