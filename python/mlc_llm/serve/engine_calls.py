"""Knows which threads are inside an engine, for two moments: the end of a program, and a fork.

At the end of a program Python unwinds the stack of each daemon thread that asks for its lock. If
that stack has a frame of C++ or Rust, the process ends with SIGABRT. So at the end of a program no
thread may enter an engine any more, and the program waits until all threads have left.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType

from mlc_llm.errors import EngineDead, forked
from mlc_llm.runtime.compute_thread import close_all

CALLBACK_SECONDS = 30.0
"""How long the end of a program waits for users' callbacks, which may never return."""
GRACE_SECONDS = 2.0
"""A thread that enters too late waits this long before it gets an error. The program has usually
ended by then, so nobody sees an error that does not matter."""

Function = Callable[..., object]

_log = logging.getLogger(__name__)
_inside: set[int] = set()
_in_callback: set[int] = set()
_ending: list[int] = []
"""The thread that ends the program, which may still enter engines; empty before that."""
_callers: weakref.WeakSet[Callers] = weakref.WeakSet()
_stops: weakref.WeakSet[Stoppable] = weakref.WeakSet()


class Inside:
    """A context in which the calling thread is inside an engine. Raises `EngineDead` if the program
    is ending."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._is_outermost = me not in _inside
        if self._is_outermost:
            # Add first, then look: `_end_program` does these two in the other order.
            _inside.add(me)
            if _ending and me not in _ending:
                _inside.discard(me)
                _refuse()

    def __exit__(
        self, kind: type | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._is_outermost:
            _inside.discard(threading.get_ident())


class InCallback:
    """A context in which the calling thread is in a user's callback, which may take any time."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._is_outermost = me not in _in_callback
        _in_callback.add(me)

    def __exit__(
        self, kind: type | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._is_outermost:
            _in_callback.discard(threading.get_ident())


class Stoppable:
    """An engine with threads. After `stop`, its threads leave the engine soon. `stop` returns at
    once and may be called again."""

    def stop(self) -> None:
        raise NotImplementedError

    def stop_at_the_end(self) -> None:
        """Call `stop` when the program ends."""
        _stops.add(self)


class Callers(Stoppable):
    """Which threads are in the functions of one engine.

    The functions refer to this object, and it refers to `stop` alone. So there is no circular
    reference, and an engine that nobody uses is freed at once.
    """

    def __init__(self, stop: Function | None) -> None:
        self.process = os.getpid()
        self.threads: set[int] = set()
        self.is_broken = False
        """A fork copied the engine while another thread was inside."""
        self._stop = stop
        _callers.add(self)
        self.stop_at_the_end()

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()

    def after_fork(self, me: int) -> None:
        """For the child of a fork, whose only thread is `me`: the engine can be used if no other
        thread was inside at the fork."""
        self.is_broken = self.is_broken or not self.threads <= {me}
        self.threads &= {me}


def engine_functions(functions: Mapping[str, Function]) -> dict[str, Function]:
    """The functions of one engine, for calls from Python.

    In a forked process they raise `MLCError` if another thread was in one of them at the fork. At
    the end of the program they raise `EngineDead`, except in the thread that ends the program.
    """
    callers = Callers(functions.get("exit_background_loop"))
    return {name: _counted(function, callers) for name, function in functions.items()}


def _counted(function: Function, callers: Callers) -> Function:
    threads = callers.threads

    def call(*args: object) -> object:
        me = threading.get_ident()
        if me in threads:
            return function(*args)
        threads.add(me)
        try:
            if callers.is_broken:
                raise forked(callers.process)
            with Inside():
                return function(*args)
        finally:
            threads.discard(me)

    return call


def _refuse() -> None:
    time.sleep(GRACE_SECONDS)
    raise EngineDead("the program ends")


def _after_fork() -> None:
    me = threading.get_ident()
    for threads in (_inside, _in_callback):
        threads &= {me}
    for callers in _callers:
        callers.after_fork(me)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _end_program() -> None:
    _ending.append(threading.get_ident())
    latest = time.monotonic() + CALLBACK_SECONDS
    while others := _inside.difference(_ending):
        if others <= _in_callback and time.monotonic() > latest:
            _log.error("a stream callback did not return within %g s", CALLBACK_SECONDS)
            break
        for one in list(_stops):  # a copy: threads inside may still make engines
            one.stop()
        time.sleep(0.001)
    close_all()
