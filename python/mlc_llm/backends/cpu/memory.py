"""Memory that compiled code reads at full speed: KV pages, tables, inputs of a step."""

from __future__ import annotations

import mmap

import tvm_ffi

from mlc_llm.support.host_array import HostArray
from mlc_llm.support.huge_memory import huge_memory, own_memory, prefer_huge

HUGE_PAGE = 1 << 21
SMALL_START = 1 << 18
"""Bytes at the start of `growing` memory that lie in small pages: some 300 tokens of a layer of a
small model. There are few enough of these pages that their addresses stay known."""


POOL = 16 * HUGE_PAGE
"""Bytes that a pool takes from the system at once."""
LINE = 64
"""Bytes of a cache line, where memory of a pool begins."""


def zeroed(size: int) -> HostArray:
    """uint8 [size], zero, in memory as `huge_memory` gives it."""
    return HostArray(huge_memory(size), "uint8", (size,))


def growing(size: int) -> HostArray:
    """The same for memory of which little is used at first, from the start on.

    The system clears a huge page when it is first written. Each layer has a tensor of KV pages, so
    the first token of a small model would wait for 60 MB to be cleared, and where the memory is
    in pieces, for the system to make room for huge pages.
    """
    if size <= SMALL_START:
        return zeroed(size)
    found = _with_small_start(size)
    prefer_huge(found.memory, found.offset + SMALL_START)
    return found


def _with_small_start(size: int) -> HostArray:
    """uint8 [size]. SMALL_START bytes behind its start, a huge page begins."""
    whole = HostArray(own_memory(size + HUGE_PAGE), "uint8", (size + HUGE_PAGE,))
    return whole.seen_as("uint8", (size,), -(whole.address + SMALL_START) % HUGE_PAGE)


class HostScratch:
    """See `backends.device.Scratch`. It is as `growing`, but no huge page reaches over the end:
    a long prompt writes to the very end of it."""

    def __init__(self, size: int) -> None:
        found = _with_small_start(size)
        self._memory, self.tensor = found.memory, tvm_ffi.from_dlpack(found)
        large = max(size - SMALL_START, 0) // HUGE_PAGE * HUGE_PAGE
        self._large = found.offset + SMALL_START, large
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
        self._all, self._used = zeroed(0), 0
        """Memory, and how much of it is taken."""

    def take(self, size: int) -> HostArray:
        """uint8 [size], at most POOL, zero."""
        if self._used + size > self._all.nbytes:
            self._all, self._used = zeroed(POOL), 0
        taken = self._all.seen_as("uint8", (size,), self._used)
        self._used += -(-size // LINE) * LINE
        return taken
