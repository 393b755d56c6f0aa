"""Code of loaded libraries that has been run and will hardly be run again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_MADV_DONTNEED = 4


def release_code(library: str) -> None:
    """Take the code of a library, by the name of its file, out of this process's memory. What runs
    again is mapped again, from the system's cache of files. Does nothing where that is unknown."""
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for start, end in _code_of(library):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def _code_of(library: str) -> Iterator[tuple[int, int]]:
    """Addresses of its code. The other pages have been written to: these would be lost."""
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        place, permissions, *_ = line.split(maxsplit=2)
        if permissions == "r-xp" and line.endswith(f"/{library}"):
            start, end = (int(number, 16) for number in place.split("-"))
            yield start, end
