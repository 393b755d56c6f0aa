"""Threads that stay together through all kernels of a step.

TVM starts its threads for each kernel, 169 times in a step of the default model. A team starts once
a step, and its members see the next kernel at once. `thread_team.ll` is what they do.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import cast

import tvm_ffi

MOST_MEMBERS = 256
"""The file has room for so many."""


class ThreadTeam:
    """That of a linked module with the functions of `thread_team.ll`."""

    def __init__(self, module: tvm_ffi.Module, threads: int) -> None:
        """threads: of TVM's pool. Asking TVM for them would make one for the calling thread."""
        self._run, self._forget, self._threads = module["run"], module["forget"], threads
        # One that an earlier version has compiled does not count.
        counts = module.implements_function("launches")
        self._launches = module["launches"] if counts else None
        module["form"]()
        _teams.add(self)

    def leading(self, function: tvm_ffi.Function) -> Callable[..., object]:
        """The same function, computed by the team; or by TVM's pool while another thread leads, or
        where threads are too many."""
        if self._threads > MOST_MEMBERS:
            return cast("Callable[..., object]", function)
        return partial(self._run, function)

    @property
    def launches(self) -> int:
        """Kernels that it has begun so far. Any thread may ask, also in the middle of a step."""
        return 0 if self._launches is None else int(self._launches())

    def forget_parent(self) -> None:
        """In a forked process: no thread of the team is there."""
        self._forget()


_teams: weakref.WeakSet[ThreadTeam] = weakref.WeakSet()


def _in_child() -> None:
    for team in list(_teams):
        team.forget_parent()


os.register_at_fork(after_in_child=_in_child)
