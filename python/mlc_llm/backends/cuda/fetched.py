"""Takes a step's few results to the host, through memory that the GPU writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.backends.cuda.runtime import TO_HOST, Event, PinnedMemory, Runtime
from mlc_llm.backends.cuda.staging import ALIGNMENT, current_stream
from mlc_llm.backends.cuda.tensors import size_of

LEAST_SIZE = 1 << 14
"""Bytes of a block of pinned memory."""
MOST_KEPT = 4
"""Blocks that wait for the next step. Two steps are under way at most."""


class Block:
    """Pinned memory, and when it was written."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.memory: PinnedMemory = runtime.pinned(size)
        self.is_written = Event(runtime)


class Fetcher:
    """Starts copies to the host. One thread at a time, but for `GpuValues.values`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._free: list[Block] = []

    def fetch(self, tensors: Sequence[tvm_ffi.Tensor]) -> GpuValues:
        """Behind all that was given to TVM's stream."""
        sizes, places, end = [size_of(tensor) for tensor in tensors], [], 0
        for size in sizes:
            places.append(end)
            end += size + -size % ALIGNMENT
        block, stream = self._block(end), current_stream()
        for tensor, place, size in zip(tensors, places, sizes, strict=True):
            if size:
                to = block.memory.start + place
                self._runtime.copy(to, tensor.data_ptr(), size, TO_HOST, stream)
        block.is_written.record(stream)
        kinds = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
        return GpuValues(block, list(zip(places, kinds, strict=True)), self._free)

    def _block(self, size: int) -> Block:
        while self._free:
            block = self._free.pop()
            if block.memory.size >= size:
                return block
        return Block(self._runtime, max(LEAST_SIZE, 1 << (size - 1).bit_length()))


class GpuValues:
    """See `backends.device.Fetched`."""

    def __init__(
        self,
        block: Block,
        places: Sequence[tuple[int, tuple[tuple[int, ...], str]]],
        free: list[Block],
    ) -> None:
        """places: of each tensor in the block, its shape and its type. free: gets the block."""
        self._block, self._places, self._free = block, places, free

    def values(self) -> Sequence[npt.NDArray[Any]]:
        """Raises DeviceFailed for what failed before the copies, an illegal access say."""
        return self._read(self._places)

    def numbers(self) -> list[int]:
        found: list[int] = self._read(self._places[:1])[0].tolist()
        return found

    def _read(
        self, places: Sequence[tuple[int, tuple[tuple[int, ...], str]]]
    ) -> list[npt.NDArray[Any]]:
        self._block.is_written.wait()
        view = self._block.memory.view()
        return [
            np.frombuffer(view, dtype, prod(shape), place).reshape(shape).copy()
            for place, (shape, dtype) in places
        ]

    def __del__(self) -> None:
        """Also of a step that nobody collects: a later copy into the block comes behind its own."""
        if len(self._free) < MOST_KEPT:
            self._free.append(self._block)
