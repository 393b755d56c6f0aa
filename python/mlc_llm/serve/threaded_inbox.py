"""The way into the engine's thread: instructions, and who may carry them out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mlc_llm.errors import EngineDead, MLCError


class InstructionKind(IntEnum):
    """What can be asked of the engine's thread. Names and numbers are an interface."""

    kAddRequest = 0
    kAbortRequest = 1
    kUnloadEngine = 2
    kReloadEngine = 3
    kResetEngine = 4
    kDebugCallFuncOnAllAllWorker = 5


@dataclass(frozen=True)
class Instruction:
    """One thing to do."""

    kind: InstructionKind
    payload: Any = None
    """In the order of the kinds: Arrival, Ticket or None, None, EngineConfig, None,
    (function, argument)."""
    done: Future[None] | None = None
    """Where somebody waits for this very instruction: gets its end or its error."""


class Inbox:
    """A queue of instructions and the right to carry them out, under one lock.

    Exactly one thread at a time is the owner of everything behind the inbox: the background loop,
    or, while no loop runs, a caller that has to wait for an instruction. The lock can be taken
    again by its holder, because a finaliser may call in at any place.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[Instruction] = []
        self._owner: int | None = None
        self._has_loop = False
        self._is_waiting = False
        self._closed: str | None = None

    @property
    def closed(self) -> str | None:
        """Why nothing can be put in any more."""
        return self._closed

    @property
    def is_mine(self) -> bool:
        """The calling thread is the owner."""
        return self._owner == threading.get_ident()

    def put(self, instruction: Instruction) -> None:
        """Append, and wake the loop if it sleeps. Raises `EngineDead` once closed."""
        with self._changed:
            if self._closed is not None:
                raise EngineDead(self._closed)
            self._queue.append(instruction)
            if self._is_waiting:
                self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Let nothing in any more. The first reason counts."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()

    def own(self) -> bool:
        """Become the owner if nobody is."""
        with self._changed:
            if self._owner is not None:
                return False
            self._owner = threading.get_ident()
            return True

    def own_as_loop(self) -> None:
        """Become the owner, after whoever is it now. Raises `MLCError` if that is a loop."""
        with self._changed:
            if self._has_loop:
                raise MLCError("the background loop of this engine runs already")
            self._has_loop = True
            try:
                while not self.own():
                    self._changed.wait()
            except BaseException:
                self._has_loop = False
                raise

    def release(self) -> None:
        """Be the owner no more."""
        with self._changed:
            self._owner = None
            self._changed.notify_all()

    def release_as_loop(self) -> None:
        """End what `own_as_loop` began."""
        with self._changed:
            self._has_loop = False
            self.release()

    def take_when(self, has_work: Callable[[], bool]) -> list[Instruction] | None:
        """Sleep until there is an instruction or work; None once closed. For the loop."""
        with self._changed:
            while not self._queue and self._closed is None and not has_work():
                self._is_waiting = True
                self._changed.wait()
            self._is_waiting = False
            return None if self._closed is not None else self.drain()

    def take_or_release(self) -> list[Instruction]:
        """What there is; if that is nothing, the caller is the owner no more."""
        with self._changed:
            found = self.drain()
            if not found:
                self.release()
            return found

    def drain(self) -> list[Instruction]:
        """All instructions, in order; the queue is empty then."""
        with self._changed:
            found, self._queue = self._queue, []
            return found
