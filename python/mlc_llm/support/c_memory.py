"""The memory of the C library in a server: few arenas, and what is free goes back to the system.

glibc gives threads arenas of their own, up to eight a core. Each keeps what it had at its busiest
moment, and a server's threads take turns at large work (a grammar, a long prompt). So its memory
would grow for hours, up to the sum of those moments.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

ARENAS = 2
"""One for the event loop, and one that other threads share. Small pieces need no lock anyway."""
_M_ARENA_MAX = -8
VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""A user who has set one of them has chosen."""


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


def _glibc(name: str) -> Callable[..., Any] | None:
    """A function of the C library; None where it is not there."""
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found
