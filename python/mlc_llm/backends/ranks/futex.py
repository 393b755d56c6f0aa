"""Waiting for a number in shared memory to change (Linux, x86-64).

Python has no such thing for memory that processes share. On x86-64 stores are seen in the order in
which they were made, so data that was written before a number may be read behind it.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys

_SYSCALL = 202
_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def why_not_here() -> str | None:
    """Why ranks cannot run on this machine; None: they can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        words = "ranks run on Linux with an x86-64 processor only in this version"
        return f"{words}; leave it out"
    return None


class Word:
    """One number of shared memory, from 0 to 2^32 - 1."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._call = ctypes.CDLL(None).syscall
        self._word = ctypes.c_uint32.from_buffer(memory, offset)
        self._number = memoryview(memory)[offset : offset + 4].cast("I")
        self._address = ctypes.byref(self._word)

    def read(self) -> int:
        return self._number[0]

    def write(self, number: int) -> None:
        """Change it, and wake all who wait for that."""
        self._number[0] = number
        self._call(_SYSCALL, self._address, _WAKE, _ALL, None, None, 0)

    def wait(self, number: int, seconds: float) -> None:
        """Return when it is not `number`, or after the time, or earlier. Other threads of Python
        run meanwhile."""
        whole = int(seconds)
        limit = _Time(whole, int((seconds - whole) * 1e9))
        expected = ctypes.c_uint32(number)
        self._call(_SYSCALL, self._address, _WAIT, expected, ctypes.byref(limit), None, 0)
