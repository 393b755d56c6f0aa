"""Memory in huge pages, where the system has them.

No NumPy here: a command begins to read weights before anything heavy is imported.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def huge_memory(size: int) -> mmap.mmap:
    """At least `size` bytes, zero, at the start of a page. The system gives memory when it is
    written.

    Two threads read a third faster from huge pages, because there are fewer addresses to translate.
    No child process shares the memory. Raises MemoryError.
    """
    flags = {}
    if hasattr(mmap, "MAP_ANONYMOUS"):
        flags["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, max(size, 1), **flags)
    except OSError as error:  # as that of a file it would tell of a broken one
        raise MemoryError(f"{size >> 20} MiB of memory are not free") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
