"""The way into the engine's thread: a queue of instructions, and which thread carries them out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import NamedTuple

from mlc_llm.errors import EngineDead, MLCError
from mlc_llm.record import record
from mlc_llm.runtime.batch import AdapterParts
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Prepared
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded.open_requests import OpenRequest


class InstructionKind(IntEnum):
    """What the engine's thread can be asked to do. Names and numbers are a public interface."""

    kAddRequest = 0
    kAbortRequest = 1
    kUnloadEngine = 2
    kReloadEngine = 3
    kResetEngine = 4
    kDebugCallFuncOnAllAllWorker = 5
    kCallCore = 6
    kChangeAdapters = 7


@record()
class Arrival:
    """A request on its way to the engine's thread."""

    request: Request
    open_request: OpenRequest
    prepared: Prepared | None = None
    """Made for the model `request.load_id`. None: the engine's thread prepares the request."""


class DebugCall(NamedTuple):
    """A TVM global function to call, and its argument if it has one."""

    function: str
    argument: str | None


class CoreCall(NamedTuple):
    """What to do with the core, between two steps."""

    function: Callable[[EngineCore], None]


class AdapterChange(NamedTuple):
    """A LoRA adapter to load or to drop."""

    name: str
    parts: AdapterParts | None
    """None: it is dropped."""
    load_id: int
    """The opened model that it was read for."""


Payload = Arrival | OpenRequest | EngineConfig | DebugCall | CoreCall | AdapterChange | None


@record()
class Instruction:
    """One thing to do."""

    kind: InstructionKind
    payload: Payload = None
    """By kind: `Arrival` to add; `OpenRequest` to abort, or None for an id that is not open;
    `EngineConfig` to reload; `DebugCall` to call a function; `CoreCall` to
    use the core; `AdapterChange`; None to unload and to reset."""
    done: Future[None] | None = None
    """Set when a caller waits for this instruction: it gets the end or the error."""


class Inbox:
    """A queue of instructions, and the owner: the one thread that may carry them out.

    The owner is the background loop. While no loop runs, it is a caller that waits for an
    instruction. One lock protects both. The lock is reentrant, because Python may run a finaliser
    that calls in here at any line.
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
        """Why no instruction can be put any more; None while the inbox is open."""
        return self._closed

    @property
    def is_asleep(self) -> bool:
        """The loop sleeps, and there is nothing for which it should wake."""
        return self._is_waiting and not self._queue

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the owner."""
        return self._owner == threading.get_ident()

    def put(self, instruction: Instruction) -> None:
        """Append an instruction, and wake the loop if it sleeps. Raises `EngineDead` if closed."""
        with self._changed:
            if self._closed is not None:
                raise EngineDead(self._closed)
            self._queue.append(instruction)
            if self._is_waiting:
                self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Refuse all further instructions. The first reason is kept."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()

    def own(self) -> bool:
        """Become the owner if there is none. Returns whether that happened."""
        with self._changed:
            if self._owner is not None:
                return False
            self._owner = threading.get_ident()
            return True

    def own_as_loop(self) -> None:
        """Wait until there is no owner, then become it. Raises `MLCError` if another loop runs."""
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
        """Stop being the owner."""
        with self._changed:
            self._owner = None
            self._changed.notify_all()

    def release_as_loop(self) -> None:
        """Undo `own_as_loop`."""
        with self._changed:
            self._has_loop = False
            self.release()

    def take_when(self, has_work: Callable[[], bool]) -> list[Instruction] | None:
        """Sleep until there is an instruction, or `has_work` says yes. Returns all instructions;
        None once closed. For the loop."""
        with self._changed:
            while not self._queue and self._closed is None and not has_work():
                self._is_waiting = True
                self._changed.wait()
            self._is_waiting = False
            return None if self._closed is not None else self.drain()

    def take_or_release(self) -> list[Instruction]:
        """All instructions. If there are none, the caller stops being the owner."""
        with self._changed:
            found = self.drain()
            if not found:
                self.release()
            return found

    def drain(self) -> list[Instruction]:
        """Empty the queue. Returns its instructions in order."""
        with self._changed:
            found, self._queue = self._queue, []
            return found
