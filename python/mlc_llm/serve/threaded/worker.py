"""What the engine's thread does: carry out instructions, run steps, end every request.

There is no lock here: one thread at a time uses all of it. An error ends the requests that it
affects and no others.
"""

from __future__ import annotations

import gc
import logging
from collections import deque

import tvm_ffi

from mlc_llm.errors import EngineDead, InvalidField, MLCError, UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine
from mlc_llm.serve.threaded.inbox import (
    AdapterChange,
    Arrival,
    CoreCall,
    DebugCall,
    Instruction,
    InstructionKind,
)
from mlc_llm.serve.threaded.open_requests import OpenRequest, OpenRequests
from mlc_llm.serve.threaded.outbox import Outbox, Outputs

NOTHING_LOADED = "no engine is loaded; call reload first"

RELOADING = "no engine is loaded now: a reload is under way; ask again when it is done"

OTHER_MODEL = "the model was reloaded after the request was made for the one before; send it again"

_log = logging.getLogger(__name__)


class Worker:
    """Holds the loaded engine and works on it. Any thread may read `loaded`, `admission` and
    `launches`; only the owner of the inbox may use the rest."""

    def __init__(self, outbox: Outbox, open_requests: OpenRequests) -> None:
        self.device = "auto"
        self.trace: EventTraceRecorder | None = None
        self.loaded: OpenEngine | None = None
        """None before `reload`, after `unload`, and when a reload failed."""
        self.why_not_loaded = NOTHING_LOADED
        self._outbox = outbox
        self._open_requests = open_requests
        self._queue: deque[Instruction] = deque()
        self._held: Outputs = []
        """Outputs of the last step. They go out when the model computes the next step. If readers
        woke earlier, they would take Python's lock while that step is prepared."""

    def admission(self) -> tuple[Admission, int] | None:
        """What prepares requests for the loaded model, and its `load_id`. None without a model.
        Nothing in it refers to the rest of the engine, so it may be used after an unload."""
        loaded = self.loaded
        return None if loaded is None else (loaded.core.admission, loaded.load_id)

    @property
    def launches(self) -> int:
        """Kernels that have begun so far; see `ModelRunner`. Any thread may ask."""
        loaded = self.loaded
        return 0 if loaded is None else loaded.launches

    def has_work(self) -> bool:
        """Whether a step has something to compute."""
        return self.loaded is not None and not self.loaded.core.is_idle

    def run(self, instructions: list[Instruction]) -> None:
        """Carry out the instructions in order. A caller that waits for one gets its error."""
        self._queue.extend(instructions)
        while self._queue:
            self._flush()
            self._run_one(self._queue.popleft())

    def step(self) -> None:
        """Run one step of the core, if it has something to compute. Raises `EngineDead` behind the
        last step that the core can run."""
        if self.loaded is None or self.loaded.core.is_idle:
            return
        try:
            outputs = self.loaded.core.step()
        except Exception as error:
            self._restart_core("a step", error)
        else:
            self._flush()  # outputs are still held if this step did not run the model
            self._held = self._open_requests.filter(outputs)
            if self.loaded.core.is_idle or not self.loaded.runners:
                self._flush()  # no step follows, or no runner tells when it computes
            if self.loaded.core.fault is not None:
                raise EngineDead(self.loaded.core.fault)

    def end(self, instructions: list[Instruction], reason: FinishReason, why: str) -> None:
        """End everything: every open request, and every caller that waits. Nothing runs after."""
        error = why if reason == "error" else None
        if error is not None:
            self._give(self._open_requests.end_accepted(reason, error))
            self._forget()  # a core that failed is not used any more
        try:
            self._drop()
        except BaseException:
            _log.critical("the engine could not be unloaded at its end", exc_info=True)
        self._queue.extend(instructions)
        while self._queue:
            left = self._queue.popleft()
            if isinstance(left.payload, Arrival):
                self._give(self._open_requests.end(left.payload.open_request, reason, error))
            if left.done is not None and not left.done.done():
                left.done.set_exception(EngineDead(why))
        self._flush()
        self._outbox.close()

    def _run_one(self, instruction: Instruction) -> None:
        done = instruction.done
        try:
            self._carry_out(instruction)
        except BaseException as error:
            if done is None:
                raise
            if not isinstance(error, Exception):
                done.set_exception(EngineDead(f"the engine died: {_message(error)}"))
                raise
            done.set_exception(error)
        else:
            if done is not None:
                done.set_result(None)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction.payload:
            case Arrival() as arrival:
                self._add(arrival)
            case OpenRequest() as request:
                self._abort(request)
            case EngineConfig() as config:
                self._reload(config)
            case DebugCall() as call:
                self._debug_call(call)
            case CoreCall() as use:
                if self.loaded is None:
                    raise MLCError(self.why_not_loaded)
                use.function(self.loaded.core)
            case AdapterChange() as change:
                self._change_adapters(change)
            case None if instruction.kind is InstructionKind.kUnloadEngine:
                self._unload()
            case None if instruction.kind is InstructionKind.kResetEngine:
                self._reset()
            case None:
                pass  # it aborts a request that is not open

    def _add(self, arrival: Arrival) -> None:
        if not self._open_requests.accept(arrival.open_request):
            return  # it was aborted while a caller's thread prepared it
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
            self._refuse(arrival, _message(error))
            self._abort_in_core(request.request_id)  # the core may have a part of it

    def _abort(self, request: OpenRequest) -> None:
        """End a request, unless it has ended since the abort was put into the inbox."""
        if self._open_requests.find(request.request_id) is not request:
            return
        if request.is_accepted:
            self._abort_in_core(request.request_id)
        else:  # a caller's thread prepares it, or it comes later in the queue
            self._give(self._open_requests.end(request, "abort"))

    def _abort_in_core(self, request_id: str) -> None:
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.abort_request(request_id))
        except Exception as error:
            self._restart_core(f"aborting request {request_id}", error)

    def _reset(self) -> None:
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.reset())
        except Exception as error:
            self._restart_core("a reset", error)

    def _unload(self) -> None:
        self._drop()
        self.why_not_loaded = NOTHING_LOADED

    def _reload(self, config: EngineConfig) -> None:
        self._drop()
        self.why_not_loaded = RELOADING
        try:
            self.loaded = open_engine(config, self.device, self.trace)
            for runner in self.loaded.runners:
                runner.before_compute = self._flush
        except BaseException as error:
            self.why_not_loaded = f"no engine is loaded, the last reload failed: {_message(error)}"
            raise

    def _change_adapters(self, change: AdapterChange) -> None:
        if self.loaded is None:
            raise MLCError(self.why_not_loaded)
        if change.load_id != self.loaded.load_id:
            raise MLCError("the model was reloaded after the adapter was read; load it again")
        if change.parts is None:
            self.loaded.core.adapters.drop(change.name)
        else:
            self.loaded.core.adapters.load(change.name, change.parts)

    def _debug_call(self, call: DebugCall) -> None:
        if self.loaded is None:
            raise MLCError(self.why_not_loaded)
        function = tvm_ffi.get_global_func(call.function, allow_missing=True)
        if function is None:
            allowed = "there is no TVM global function of this name"
            raise InvalidField("func_name", call.function, allowed)
        function(*([] if call.argument is None else [call.argument]))

    def _refuse(self, arrival: Arrival, why: str) -> None:
        self._give(self._open_requests.end(arrival.open_request, "error", why))

    def _restart_core(self, what: str, error: Exception) -> None:
        """After an error that the core could not handle: end its requests, then reset it. If the
        reset fails too, unload the engine."""
        _log.error("%s failed; the running requests end with an error", what, exc_info=error)
        self._give(self._open_requests.end_accepted("error", _message(error)))
        assert self.loaded is not None
        try:
            self.loaded.core.reset()
        except Exception as again:
            _log.exception("the engine cannot be reset; it is unloaded")
            self.why_not_loaded = f"the engine failed and was unloaded: {_message(again)}"
            self._forget()

    def _drop(self) -> None:
        """Abort every request of the core, and free its memory."""
        if self.loaded is None:
            return
        try:
            self._emit(self.loaded.core.reset())
        except Exception:
            _log.exception("the engine could not be reset before it was unloaded")
        finally:
            self._give(self._open_requests.end_accepted("abort"))
            self._forget()

    def _forget(self) -> None:
        """Free the core now: its pages may be most of the memory."""
        self.loaded = None
        gc.collect()  # the core has circular references

    def _emit(self, outputs: Outputs) -> None:
        """Send outputs of the core."""
        self._give(self._open_requests.filter(outputs))

    def _give(self, outputs: Outputs) -> None:
        self._held += outputs
        self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        self._outbox.put(held)


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__
