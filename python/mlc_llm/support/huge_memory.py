"""Memory in huge pages, if the system has them.

This file does not import NumPy: a command reads weights before it imports large packages.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def huge_memory(size: int) -> mmap.mmap:
    """At least `size` zero bytes, aligned to a page. A page takes memory at its first write.

    Two threads read a third faster from huge pages, because fewer addresses are translated. Child
    processes do not share the memory. Raises MemoryError.
    """
    memory = own_memory(size)
    prefer_huge(memory)
    return memory


def own_memory(size: int) -> mmap.mmap:
    """As `huge_memory`, in pages as the system likes. Raises MemoryError."""
    flags = {}
    if hasattr(mmap, "MAP_ANONYMOUS"):
        flags["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        return mmap.mmap(-1, max(size, 1), **flags)
    except OSError as error:  # callers would take an OSError for a broken file
        raise MemoryError(f"{size >> 20} MiB of memory are not free") from error


def prefer_huge(memory: mmap.mmap, start: int = 0, end: int | None = None) -> None:
    """Ask for huge pages from a byte on, and for small ones before it. start: of a page. end: where
    they end; None: with the memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with suppress(OSError):  # a system without them
        if start:
            memory.madvise(mmap.MADV_NOHUGEPAGE, 0, start)
        memory.madvise(mmap.MADV_HUGEPAGE, start, (len(memory) if end is None else end) - start)
