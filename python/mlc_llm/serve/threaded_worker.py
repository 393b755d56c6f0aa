"""What the engine's one thread does: carry out instructions, step the core, answer for all ends.

There is no lock here. Whatever raises in here ends what it touched and nothing else.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from mlc_llm.errors import EngineDead, InvalidField, MLCError, UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Prepared
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded_inbox import Instruction, InstructionKind
from mlc_llm.serve.threaded_outbox import Outbox, Outputs, Roster, Ticket

NOTHING_LOADED = "no engine is loaded; call reload first"

OTHER_MODEL = "the model was reloaded after the request was made for the one before; send it again"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """A request on its way to the engine's thread."""

    request: Request
    ticket: Ticket
    prepared: Prepared | None = None
    """By the model of `request.load_id`; None where the engine's thread has to do it."""


class Worker:
    """The core and its upkeep. All but `loaded` is for the thread that owns it alone."""

    def __init__(self, outbox: Outbox, roster: Roster) -> None:
        self.device = "auto"
        self.trace: EventTraceRecorder | None = None
        self.loaded: OpenEngine | None = None
        """Read from any thread; None before `reload`, after `unload` and when a reload failed."""
        self.why_not_loaded = NOTHING_LOADED
        self._outbox = outbox
        self._roster = roster
        self._batch: deque[Instruction] = deque()
        self._held: Outputs = []
        """Of the last step. They are given out when the next one has begun to compute: readers that
        were woken before would take Python's lock from the preparation of that step."""
        self._actions: dict[InstructionKind, Callable[[Any], None]] = {
            InstructionKind.kAddRequest: self._add,
            InstructionKind.kAbortRequest: self._abort,
            InstructionKind.kUnloadEngine: self._unload,
            InstructionKind.kReloadEngine: self._reload,
            InstructionKind.kResetEngine: self._reset,
            InstructionKind.kDebugCallFuncOnAllAllWorker: self._debug_call,
        }

    def has_work(self) -> bool:
        """A step would do something."""
        return self.loaded is not None and not self.loaded.core.is_idle

    def run(self, instructions: list[Instruction]) -> None:
        """Carry out all of them, in order. An error goes to whoever waits for the instruction."""
        self._batch.extend(instructions)
        while self._batch:
            self._flush()
            self._run_one(self._batch.popleft())

    def step(self) -> None:
        """One step of the core, if there is something to do."""
        if self.loaded is None or self.loaded.core.is_idle:
            return
        try:
            outputs = self.loaded.core.step()
        except Exception as error:
            self._collapse("a step", error)
        else:
            self._flush()  # a step without the model has left it
            self._held = self._roster.filter(outputs)
            if self.loaded.core.is_idle or not self.loaded.runners:
                self._flush()  # no step follows, or none that says when it computes

    def end(self, instructions: list[Instruction], reason: FinishReason, why: str) -> None:
        """Nothing runs after this: every request and everybody who waits is answered now."""
        error = why if reason == "error" else None
        if error is not None:
            self._give(self._roster.end_accepted(reason, error))
            self._forget()  # a core that broke is not asked for anything
        try:
            self._drop()
        except BaseException:
            _log.critical("the engine could not be unloaded at its end", exc_info=True)
        self._batch.extend(instructions)
        while self._batch:
            left = self._batch.popleft()
            if left.kind is InstructionKind.kAddRequest:
                self._give(self._roster.end(left.payload.ticket, reason, error))
            if left.done is not None and not left.done.done():
                left.done.set_exception(EngineDead(why))
        self._flush()
        self._outbox.close()

    def _run_one(self, instruction: Instruction) -> None:
        done = instruction.done
        try:
            self._actions[instruction.kind](instruction.payload)
        except BaseException as error:
            if done is None:
                raise
            if not isinstance(error, Exception):
                done.set_exception(EngineDead(f"the engine died: {_words(error)}"))
                raise
            done.set_exception(error)
        else:
            if done is not None:
                done.set_result(None)

    def _add(self, arrival: Arrival) -> None:
        if not self._roster.accept(arrival.ticket):
            return  # aborted while it was prepared
        request = arrival.request
        if self.loaded is None:
            self._refuse(arrival, self.why_not_loaded)
            return
        if request.load_id not in (None, self.loaded.load_id) and not request.is_special:
            self._refuse(arrival, OTHER_MODEL)
            return
        try:
            self._emit(self.loaded.core.add_request(request, arrival.prepared))
        except UserError as error:
            self._refuse(arrival, str(error))
        except Exception as error:
            _log.exception("request %s could not be added", request.request_id)
            self._refuse(arrival, _words(error))
            self._abort_in_core(request.request_id)  # which may have it, in part

    def _abort(self, ticket: Ticket | None) -> None:
        """End the request that had the id when it was said; by now it may have ended itself."""
        if ticket is None or self._roster.find(ticket.request_id) is not ticket:
            return
        if ticket.is_accepted:
            self._abort_in_core(ticket.request_id)
        else:  # it is being prepared, or comes behind in the queue
            self._give(self._roster.end(ticket, "abort"))

    def _abort_in_core(self, request_id: str) -> None:
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.abort_request(request_id))
        except Exception as error:
            self._collapse(f"aborting request {request_id}", error)

    def _reset(self, _: object) -> None:
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.reset())
        except Exception as error:
            self._collapse("a reset", error)

    def _unload(self, _: object) -> None:
        self._drop()
        self.why_not_loaded = NOTHING_LOADED

    def _reload(self, config: EngineConfig) -> None:
        self._drop()
        try:
            self.loaded = open_engine(config, self.device, self.trace)
            for runner in self.loaded.runners:
                runner.before_compute = self._flush
        except BaseException as error:
            self.why_not_loaded = f"no engine is loaded, the last reload failed: {_words(error)}"
            raise

    def _debug_call(self, call: tuple[str, str | None]) -> None:
        name, args = call
        if self.loaded is None:
            raise MLCError(self.why_not_loaded)
        function = tvm_ffi.get_global_func(name, allow_missing=True)
        if function is None:
            raise InvalidField("func_name", name, "there is no TVM global function of this name")
        function(*([] if args is None else [args]))

    def _refuse(self, arrival: Arrival, why: str) -> None:
        self._give(self._roster.end(arrival.ticket, "error", why))

    def _collapse(self, what: str, error: Exception) -> None:
        """The core failed in a way it could not mend itself: end its requests, start it afresh."""
        _log.error("%s failed; the running requests end with an error", what, exc_info=error)
        self._give(self._roster.end_accepted("error", _words(error)))
        assert self.loaded is not None
        try:
            self.loaded.core.reset()
        except Exception as again:
            _log.exception("the engine cannot be reset; it is unloaded")
            self.why_not_loaded = f"the engine failed and was unloaded: {_words(again)}"
            self._forget()

    def _drop(self) -> None:
        """Abort everything the core has, and give its memory back."""
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.reset())
        except Exception:
            _log.exception("the engine could not be reset before it was unloaded")
        finally:
            self._give(self._roster.end_accepted("abort"))
            self._forget()

    def _forget(self) -> None:
        """Let go of the core, and make sure that it goes: its pages may be most of the memory."""
        self.loaded = None
        gc.collect()  # there are circles of references in it

    def _emit(self, outputs: Outputs) -> None:
        """Give out what the core says."""
        self._give(self._roster.filter(outputs))

    def _give(self, outputs: Outputs) -> None:
        self._held += outputs
        self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        self._outbox.put(held)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
