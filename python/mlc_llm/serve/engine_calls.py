"""Which threads are inside an engine: a program must not end there, and a fork must not copy it.

Python ends the daemon threads of a program by unwinding their stacks where they next ask for its
lock. A frame of C++ or Rust does not let that pass and ends the process with SIGABRT. So, at the
end of a program, nobody enters an engine any more, and who is inside comes out first.
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
from typing import Any

from mlc_llm.errors import EngineDead, MLCError
from mlc_llm.runtime.compute_thread import close_all

CALLBACK_SECONDS = 30.0
"""How long the end of a program waits for users' callbacks, which may wait for anything."""
GRACE_SECONDS = 2.0
"""A thread that comes too late waits so long, in which the program mostly ends; nobody then reads
about an error that is none."""

_log = logging.getLogger(__name__)
_inside: set[int] = set()
_in_callback: set[int] = set()
_ending: list[int] = []
"""The thread that ends the program, and may enter still; empty before that."""
_callers: weakref.WeakSet[Callers] = weakref.WeakSet()
_stops: weakref.WeakSet[Stoppable] = weakref.WeakSet()


class Inside:
    """A context: the calling thread is in an engine. Raises `EngineDead` when the program ends."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._is_outermost = me not in _inside
        if self._is_outermost:
            _inside.add(me)  # before it looks whether it may: the end looks in the other order
            if _ending and me not in _ending:
                _inside.discard(me)
                _refuse()

    def __exit__(
        self, kind: type | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._is_outermost:
            _inside.discard(threading.get_ident())


class InCallback:
    """A context: the calling thread is in a user's callback, which may take any time."""

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
    """Something whose threads come out of the engine after `stop`, which returns at once and may be
    called again."""

    def stop(self) -> None:
        raise NotImplementedError

    def stop_at_the_end(self) -> None:
        """Have `stop` called when the program ends."""
        _stops.add(self)


class Callers(Stoppable):
    """Which threads are in the functions of one engine. The functions hold this, and it none of
    them but `stop`: an engine that is lost is freed at once, without the garbage collector."""

    def __init__(self, stop: Callable[[], Any] | None) -> None:
        self.process = os.getpid()
        self.threads: set[int] = set()
        self.is_torn = False
        self._stop = stop
        _callers.add(self)
        self.stop_at_the_end()

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()

    def after_fork(self, me: int) -> None:
        """In the child: only its one thread, `me`, may have been inside when it was copied."""
        self.is_torn = self.is_torn or not self.threads <= {me}
        self.threads &= {me}


def engine_functions(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of one engine, for calls from Python.

    They raise `MLCError` in a forked process if another thread was in one of them at the fork, and
    `EngineDead` at the end of the program, except to the thread that ends it.
    """
    callers = Callers(functions.get("exit_background_loop"))
    return {name: _counted(function, callers) for name, function in functions.items()}


def _counted(function: Callable[..., Any], callers: Callers) -> Callable[..., Any]:
    threads = callers.threads

    def call(*args: Any) -> Any:
        me = threading.get_ident()
        if me in threads:
            return function(*args)
        threads.add(me)
        try:
            if callers.is_torn:
                raise forked(callers.process)
            with Inside():
                return function(*args)
        finally:
            threads.discard(me)

    return call


def forked(process: int) -> MLCError:
    """Why an engine of another process cannot be used."""
    return MLCError(
        f"this engine belongs to process {process} and cannot be used in a forked one; make the "
        "engine after the fork"
    )


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
        for one in list(_stops):  # engines may still be made by who is inside
            one.stop()
        time.sleep(0.001)
    close_all()
