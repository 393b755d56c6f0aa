"""Asks Linux for AMX tiles: a process may not use them before.

Source: the kernel's documentation, `arch/x86/xstate.rst`.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18


@cache
def permitted() -> bool:
    """Whether this process may use tile registers, from now on and in all its threads."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    system_call = ctypes.CDLL(None).syscall
    arguments = (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return int(system_call(*(ctypes.c_long(number) for number in arguments))) == 0
