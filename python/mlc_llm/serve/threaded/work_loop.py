"""Who works on the engine, and until when: the background loop, or a caller while no loop runs.

It has no lock of its own. The inbox says which thread is the owner, and only the owner calls the
worker. `rounds` has one writer, the loop; other threads read it as a sign of life.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import NamedTuple

from mlc_llm.errors import MLCError
from mlc_llm.serve.engine_calls import Inside
from mlc_llm.serve.threaded.inbox import Inbox, Instruction, InstructionKind, Payload
from mlc_llm.serve.threaded.worker import Worker

_log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """How far an engine's thread has come."""

    rounds: int
    """It grows with every step, so also with every part of a long prompt."""
    is_idle: bool
    """It waits for work."""
    died: str | None
    """Why it has ended."""
    launches: int = 0
    """It grows with every kernel of a step too, where these are counted."""


class WorkLoop:
    """Gives instructions to the worker, in order, on one thread at a time.

    All methods may be called from any thread. After `close`, or after the loop failed, everything
    that was open has its end, and `put` and `ask` raise `EngineDead`.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inbox = Inbox()
        self._rounds = 0

    @property
    def closed(self) -> str | None:
        """Why no work is taken any more; None while it is."""
        return self._inbox.closed

    @property
    def progress(self) -> Progress:
        """Whether the loop moves."""
        inbox, launches = self._inbox, self._worker.launches
        return Progress(self._rounds, inbox.is_asleep, inbox.closed, launches)

    def put(self, instruction: Instruction) -> None:
        """Queue an instruction, and return at once."""
        self._inbox.put(instruction)

    def ask(self, kind: InstructionKind, payload: Payload) -> None:
        """Put an instruction and wait until it is done. Raises what went wrong with it."""
        if self._inbox.is_mine:
            raise MLCError("the engine's own thread cannot wait for the engine")
        done: Future[None] = Future()
        with Inside():
            self._inbox.put(Instruction(kind, payload, done))
            if self._inbox.own():
                self._work_without_loop()
            done.result()

    def run(self) -> None:
        """Work until `close`. Raises `MLCError` if another thread does already."""
        self._inbox.own_as_loop()
        try:
            while (batch := self._inbox.take_when(self._worker.has_work)) is not None:
                self._rounds += 1
                self._worker.run(batch)
                self._worker.step()
        except BaseException as error:
            self._end_with_error(error)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._inbox.release_as_loop()
        self._end_what_is_left()

    def close(self, reason: str) -> None:
        """Take no more work, and end what is open. Returns at once; the owner does the rest."""
        self._inbox.close(reason)
        self._end_what_is_left()

    def _work_without_loop(self) -> None:
        """Carry out all instructions on the calling thread, which is the owner."""
        try:
            while batch := self._inbox.take_or_release():
                self._worker.run(batch)
        except BaseException:
            self._inbox.release()
            raise
        finally:
            self._end_what_is_left()

    def _end_what_is_left(self) -> None:
        """End everything once the inbox is closed. The last owner does it, or the thread that
        closed the inbox if there is no owner."""
        if self._inbox.closed is None or not self._inbox.own():
            return
        try:
            self._worker.end(self._inbox.drain(), "abort", self._inbox.closed)
        finally:
            self._inbox.release()

    def _end_with_error(self, error: BaseException) -> None:
        """Tell everybody the error of the loop itself, which only a bug or a core with a fault can
        cause."""
        _log.critical("the engine's loop died", exc_info=error)
        why = f"the engine died: {str(error) or type(error).__name__}"
        self._inbox.close(why)
        self._worker.end(self._inbox.drain(), "error", why)
