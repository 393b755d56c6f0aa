"""The threads that may run compiled code.

TVM keeps a pool of workers for each thread that has run a parallel kernel. A fork copies such a
thread without its workers: in the child a kernel would wait for ever, and so would the end of the
program, where TVM joins them. So no thread of the user's gets a pool. Compiled code runs on a
thread of ours, which a child makes anew; and its pool ends with it when no model is left.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")

_here = threading.local()


@contextmanager
def computing_here() -> Iterator[None]:
    """The calling thread runs compiled code itself, which saves a handover each step: for
    a thread that serves an engine alone, and ends with it or never forks."""
    before = getattr(_here, "computes", False)
    _here.computes = True
    try:
        yield
    finally:
        _here.computes = before


class _Job:
    """A call, and its end."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:  # raised where the call was made
            self.error = error
        # Nothing is kept here that the caller lets go of.
        del self.function, self.args
        self.is_done = True
        self.done.release()

    def wait(self) -> Any:
        """The result. An interrupt is raised when the call has ended: it is not torn apart."""
        interrupt: BaseException | None = None
        while not self.is_done:
            try:
                self.done.acquire()
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # its traceback holds this frame
        return self.result


_Jobs = queue.SimpleQueue["_Job | None"]


class ComputeThread:
    """Runs calls one by one, in order. Its thread starts with the first, and ends when this object
    is lost or the program ends."""

    def __init__(self) -> None:
        self._begin()
        _threads.add(self)

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """`function(*args)`. Raises what it raises."""
        if self._thread is None:
            self._start()
        job = _Job(function, args)
        self._jobs.put(job)
        result: Result = job.wait()
        return result

    def close(self) -> None:
        """End the thread after the calls that were made, and wait for it."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def forget_parent(self) -> None:
        """In a forked process: the thread and what it had to do are the parent's."""
        self._end.detach()
        self._begin()

    def _begin(self) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._end = weakref.finalize(self, self._jobs.put, None)
        self._end.atexit = False  # `close_all` waits as well

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(
                    target=_run, args=(self._jobs,), name="mlc-compute", daemon=True
                )
                thread.start()
                self._thread = thread


def _run(jobs: _Jobs) -> None:
    with computing_here():
        while (job := jobs.get()) is not None:
            job.run()
            del job


_threads: weakref.WeakSet[ComputeThread] = weakref.WeakSet()


class Computing:
    """Where one model computes: on the thread that calls, if it computes itself, else on one thread
    for all models of the process, which lasts as long as one of them needs it."""

    def __init__(self) -> None:
        self._thread: ComputeThread | None = None

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """`function(*args)`. Raises what it raises."""
        if getattr(_here, "computes", False):
            return function(*args)
        if self._thread is None:
            # Two may be made at the same time; each serves whoever holds it.
            self._thread = next(iter(list(_threads)), None) or ComputeThread()
        return self._thread.call(function, *args)


def _forget_parent() -> None:
    for thread in _threads:
        thread.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


@atexit.register
def close_all() -> None:
    """Python ends daemon threads by unwinding their stacks, which the frames of C++ do not let
    pass: no thread may be inside compiled code then."""
    for thread in list(_threads):
        thread.close()
