"""Memory that compiled code reads at full speed: KV pages, tables, inputs of a step."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.support.huge_memory import huge_memory, own_memory, prefer_huge

HUGE_PAGE = 1 << 21
SMALL_START = 1 << 18
"""Bytes at the start of `growing` memory that lie in small pages: some 300 tokens of a layer of a
small model. There are few enough of these pages that their addresses stay known."""


POOL = 16 * HUGE_PAGE
"""Bytes that a pool takes from the system at once."""
LINE = 64
"""Bytes of a cache line, where memory of a pool begins."""


def zeroed(size: int) -> npt.NDArray[Any]:
    """uint8 [size], zero, in memory as `huge_memory` gives it."""
    return np.frombuffer(huge_memory(size), np.uint8)[:size]


def growing(size: int) -> npt.NDArray[Any]:
    """The same for memory of which little is used at first, from the start on.

    The system clears a huge page when it is first written. Each layer has a tensor of KV pages, so
    the first token of a small model would wait for 60 MB to be cleared, and where the memory is
    in pieces, for the system to make room for huge pages.
    """
    if size <= SMALL_START:
        return zeroed(size)
    memory, whole, start = _with_small_start(size)
    prefer_huge(memory, start + SMALL_START)
    return whole[start : start + size]


def _with_small_start(size: int) -> tuple[mmap.mmap, npt.NDArray[np.uint8], int]:
    """Memory, and a place in it with room for `size` bytes. SMALL_START bytes behind the place, a
    huge page begins."""
    memory = own_memory(size + HUGE_PAGE)
    whole = np.frombuffer(memory, np.uint8)
    return memory, whole, -(whole.ctypes.data + SMALL_START) % HUGE_PAGE


class HostScratch:
    """See `backends.device.Scratch`. It is as `growing`, but no huge page reaches over the end:
    a long prompt writes to the very end of it."""

    def __init__(self, size: int) -> None:
        self._memory, whole, start = _with_small_start(size)
        self.tensor = tvm_ffi.from_dlpack(whole[start : start + size])
        self._large = start + SMALL_START, max(size - SMALL_START, 0) // HUGE_PAGE * HUGE_PAGE
        """Where huge pages begin, and their bytes."""
        first, length = self._large
        if length:
            prefer_huge(self._memory, first, first + length)

    def give_back(self) -> None:
        first, length = self._large
        if length and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, first, length)


class Pool:
    """Zeroed memory for small tensors, one behind the other: one of its own would take a whole huge
    page. Nothing is used again; the system gets memory back when all that shares it is gone."""

    def __init__(self) -> None:
        self._rest = np.empty(0, np.uint8)

    def take(self, size: int) -> npt.NDArray[Any]:
        """uint8 [size], at most POOL, zero."""
        whole = -(-size // LINE) * LINE
        if len(self._rest) < whole:
            self._rest = zeroed(POOL)
        taken, self._rest = self._rest[:size], self._rest[whole:]
        return taken
