"""The memory of the C library in a server: few arenas, and what is free goes back to the system.

glibc gives threads arenas of their own, up to eight a core. Each keeps what it had at its busiest
moment, and a server's threads take turns at large work (a grammar, a long prompt). So its memory
would grow for hours, up to the sum of those moments.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

ARENAS = 2
"""One for the event loop, and one that other threads share. Small pieces need no lock anyway."""
_M_ARENA_MAX = -8
VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""A user who has set one of them has chosen."""


EVERY_S = 60.0
"""A server that never rests gives memory back so often. It takes some 10 ms of processor time."""


def few_arenas() -> bool:
    """Bound the arenas of this process. To be called before threads start: arenas that are there
    stay. Returns whether it is done; other C libraries than glibc have nothing to bound."""
    if any(name in os.environ for name in VARIABLES):
        return False
    set_option = _glibc("mallopt")
    return set_option is not None and set_option(_M_ARENA_MAX, ARENAS) == 1


def give_back() -> None:
    """Give all whole pages that are free in the arenas back to the system."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


class GivingBack:
    """Gives free memory back now and then, while there is work all the time."""

    def __init__(
        self,
        work: Callable[[], object] = give_back,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """work: is done on a thread of its own."""
        self._work, self._clock = work, clock
        self._done_at = clock()

    def look(self, *, is_busy: bool) -> None:
        """To be called several times a second."""
        if is_busy and self._clock() >= self._done_at + EVERY_S:
            self._done_at = self._clock()
            threading.Thread(target=self._work, name="give-back").start()


def _glibc(name: str) -> Callable[..., Any] | None:
    """A function of the C library; None where it is not there."""
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found
