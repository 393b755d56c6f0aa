"""`ThreadedEngine`: the engine on a thread of its own; callers never wait for the model.

Two loops, each for one thread: `run_background_loop` carries out instructions and steps the core,
`run_background_stream_back_loop` hands outputs to the callback, so that a slow callback holds up
nobody. Whatever happens, every request that was taken in ends with exactly one usage output.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import tvm_ffi

from mlc_llm.errors import EngineDead, MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.engine_calls import InCallback, Inside, Stoppable, forked
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.ffi_table import function_table
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.open_engine import OpenEngine
from mlc_llm.serve.prompts import data_of_inputs
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded_inbox import Inbox, Instruction, InstructionKind
from mlc_llm.serve.threaded_outbox import Outbox, Roster, Ticket
from mlc_llm.serve.threaded_worker import Arrival, Worker

__all__ = ["FUNCTIONS", "InstructionKind", "ThreadedEngine"]

StreamCallback = Callable[[list[RequestStreamOutput]], None]

FUNCTIONS = (
    "init_threaded_engine",
    "reload",
    "unload",
    "reset",
    "add_request",
    "create_request",
    "abort_request",
    "run_background_loop",
    "run_background_stream_back_loop",
    "exit_background_loop",
    "get_default_generation_config",
    "get_complete_engine_config",
    "debug_call_func_on_all_worker",
)
TERMINATED = "the engine was terminated"

_log = logging.getLogger(__name__)


class ThreadedEngine(Stoppable):
    """All methods may be called from any thread, also from the callback.

    `init_threaded_engine` comes before everything but the loops. `reload`, `unload` and
    `debug_call_func_on_all_worker` wait for their end and raise what went wrong; while no
    background loop runs, the calling thread does the work itself. The others return at once. After
    `exit_background_loop`, or when the loop has died, all that asks for work raises `EngineDead`.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._inbox = Inbox()
        self._outbox = Outbox()
        self._roster = Roster()
        self._worker = Worker(self._outbox, self._roster)
        self._callback: StreamCallback | None = None
        self.stop_at_the_end()

    @staticmethod
    def Create() -> ThreadedEngine:
        """A new engine, with nothing loaded and no thread."""
        return ThreadedEngine()

    def init_threaded_engine(
        self,
        device: Any,
        request_stream_callback: StreamCallback | None = None,
        trace_recorder: EventTraceRecorder | None = None,
    ) -> None:
        """`device`: a name or a TVM device. The callback gets lists of outputs, on the stream-back
        loop's thread. Raises `MLCError` without a callback, or the second time."""
        self._check_process()
        if request_stream_callback is None:
            raise MLCError("a threaded engine needs a request stream callback")
        if self._callback is not None:
            raise MLCError("the engine was initialized before")
        self._worker.device, self._worker.trace = str(device), trace_recorder
        self._callback = request_stream_callback

    def reload(self, engine_config_json_str: str) -> None:
        """Abort everything, drop the model, open the one that the config names.

        Raises `UserError` for a config that is wrong (then nothing has changed), or whatever
        opening the model raised (then nothing is loaded, and another `reload` may follow).
        """
        config = EngineConfig.from_json(engine_config_json_str)
        self._ask(InstructionKind.kReloadEngine, config)

    def unload(self) -> None:
        """Abort everything and give the model's memory back."""
        self._ask(InstructionKind.kUnloadEngine, None)

    def reset(self) -> None:
        """Abort everything, clear all state and metrics. Nothing happens when nothing is loaded."""
        self._put(Instruction(InstructionKind.kResetEngine))

    def create_request(
        self,
        request_id: str,
        inputs: Any,
        generation_config: str | GenerationConfig | Mapping[str, Any],
    ) -> Request:
        """`inputs`: one `Data` or several; a string stands for a text. The config (or its JSON, or
        a dict of its fields) is merged over the model's defaults. Raises `UserError` for what is
        wrong, `MLCError` when nothing is loaded."""
        if isinstance(generation_config, str):
            config = GenerationConfig.from_json(generation_config)
        else:
            config = GenerationConfig.of(generation_config)
        loaded = self.loaded
        config = config.merged_over(loaded.bundle.defaults)
        return Request(request_id, data_of_inputs(inputs), config, loaded.load_id)

    def add_request(self, request: Request) -> None:
        """Queue a request. What the engine refuses later ends with `error` and a usage; so does a
        request that was made for a model which is not loaded any more.

        What takes time (tokens, tables, a grammar) is done here, on the caller's thread, while
        streams go on. An abort ends the request meanwhile too. Raises `InvalidField` while a
        request of the same id runs: the two could not be told apart.
        """
        self.make_and_add(request.request_id, request.n, lambda: request)

    def make_and_add(self, request_id: str, n: int, make: Callable[[], Request]) -> None:
        """As `add_request`, for a request of this id and `n` that takes time to make. Raises what
        `make` raises, unless the request was aborted before."""
        self.check_usable()
        ticket = self._roster.enter(request_id, n)
        try:
            with Inside():
                arrival = self._prepared(make(), ticket)
                self._put(Instruction(InstructionKind.kAddRequest, arrival))
        except BaseException as error:
            is_open = self._roster.leave(ticket)
            if is_open or not isinstance(error, Exception):
                raise

    def _prepared(self, request: Request, ticket: Ticket) -> Arrival:
        """The request with all that can be done before the engine's thread sees it."""
        admission, load_id = self._admission()
        if admission is None or request.is_special or request.load_id not in (None, load_id):
            return Arrival(request, ticket)
        request = replace(request, load_id=load_id)
        try:
            return Arrival(request, ticket, admission.prepare(request))
        except Exception:  # a bug of ours: the engine's thread meets it again, and answers with it
            return Arrival(request, ticket)

    def _admission(self) -> tuple[Admission | None, int]:
        """Of the loaded model. The rest of it is not held on to: it may be unloaded meanwhile."""
        loaded = self._worker.loaded
        return (None, 0) if loaded is None else (loaded.core.admission, loaded.load_id)

    def abort_request(self, request_id: str) -> None:
        """End a request: its stream ends with `abort` and a usage. Unknown ids are ignored."""
        ticket = self._roster.find(str(request_id))
        try:
            self._put(Instruction(InstructionKind.kAbortRequest, ticket))
        except EngineDead:
            _log.debug("request %s ended with the engine", request_id)

    def debug_call_func_on_all_worker(self, func_name: str, func_args: str | None = None) -> None:
        """Call a TVM global function on the engine's thread, between two steps, and wait for it.

        Raises `MLCError` when nothing is loaded, `InvalidField` for an unknown name.
        """
        self._ask(InstructionKind.kDebugCallFuncOnAllAllWorker, (func_name, func_args))

    def run_background_loop(self) -> None:
        """Body of the engine's thread; returns after `exit_background_loop`."""
        self._check_process()
        with Inside(), computing_here():
            self._run_background_loop()

    def _run_background_loop(self) -> None:
        self._inbox.own_as_loop()
        try:
            while (batch := self._inbox.take_when(self._worker.has_work)) is not None:
                self._worker.run(batch)
                self._worker.step()
        except BaseException as error:
            self._die(error)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._inbox.release_as_loop()
        self._end_what_is_left()

    def run_background_stream_back_loop(self) -> None:
        """Body of the callback's thread; returns when the last output was handed over.

        A callback that raises is logged and called again; the requests whose outputs it had are
        aborted, since part of their text may be lost.
        """
        self._check_process()
        with Inside():
            self._run_stream_back_loop()

    def _run_stream_back_loop(self) -> None:
        while (outputs := self._outbox.take()) is not None:
            assert self._callback is not None  # there is no output before there is a request
            try:
                with InCallback():
                    self._callback(outputs)
            except BaseException:
                requests = dict.fromkeys(output.request_id for output in outputs)
                _log.exception("the request stream callback raised; requests %s", list(requests))
                for request_id in requests:
                    self.abort_request(request_id)

    def exit_background_loop(self) -> None:
        """End both loops: everything is aborted, every output is handed over, nothing is loaded
        any more. Returns at once. A second call, or one in a forked process, does nothing."""
        if os.getpid() == self._process:
            self._inbox.close(TERMINATED)
            self._end_what_is_left()

    stop = exit_background_loop

    def get_default_generation_config(self) -> GenerationConfig:
        """The loaded model's defaults. Raises `MLCError` when nothing is loaded."""
        return self.loaded.bundle.defaults

    def get_complete_engine_config(self) -> EngineConfig:
        """The config with every limit. Raises `MLCError` when nothing is loaded."""
        return self.loaded.config

    def get_model_bundle(self) -> ModelBundle:
        """Tokenizer, template and files of the loaded model."""
        return self.loaded.bundle

    @property
    def loaded(self) -> OpenEngine:
        """What is loaded now; only the engine's thread may touch its core. Raises `MLCError`."""
        self.check_usable()
        loaded = self._worker.loaded
        if loaded is None:
            if self._inbox.closed is not None:
                raise EngineDead(self._inbox.closed)
            raise MLCError(self._worker.why_not_loaded)
        return loaded

    def check_usable(self) -> None:
        """Raise `MLCError` before `init_threaded_engine` and in a forked process."""
        self._check_process()
        if self._callback is None:
            raise MLCError("the engine is not initialized; call init_threaded_engine first")

    InitThreadedEngine = init_threaded_engine
    Reload = reload
    Unload = unload
    Reset = reset
    CreateRequest = create_request
    AddRequest = add_request
    AbortRequest = abort_request
    RunBackgroundLoop = run_background_loop
    RunBackgroundStreamBackLoop = run_background_stream_back_loop
    ExitBackgroundLoop = exit_background_loop
    GetDefaultGenerationConfig = get_default_generation_config
    GetCompleteEngineConfig = get_complete_engine_config
    DebugCallFuncOnAllAllWorker = debug_call_func_on_all_worker

    def _check_process(self) -> None:
        """A fork copies the locks and none of the threads: nothing would ever answer."""
        if os.getpid() != self._process:
            raise forked(self._process)

    def _put(self, instruction: Instruction) -> None:
        self.check_usable()
        self._inbox.put(instruction)

    def _ask(self, kind: InstructionKind, payload: Any) -> None:
        """Put an instruction and wait for it."""
        self.check_usable()
        if self._inbox.is_mine:
            raise MLCError("the engine's own thread cannot wait for the engine")
        done: Future[None] = Future()
        with Inside():
            self._inbox.put(Instruction(kind, payload, done))
            if self._inbox.own():
                self._work_without_loop()
            done.result()

    def _work_without_loop(self) -> None:
        """The caller, who is the owner now, carries out what is queued."""
        try:
            while batch := self._inbox.take_or_release():
                self._worker.run(batch)
        except BaseException:
            self._inbox.release()
            raise
        finally:
            self._end_what_is_left()

    def _end_what_is_left(self) -> None:
        """Once closed, the last owner (or the closer, if there is none) answers everybody."""
        if self._inbox.closed is None or not self._inbox.own():
            return
        try:
            self._worker.end(self._inbox.drain(), "abort", self._inbox.closed)
        finally:
            self._inbox.release()

    def _die(self, error: BaseException) -> None:
        """The loop itself broke, which nothing in it should: answer everybody with the error."""
        _log.critical("the engine's loop died", exc_info=error)
        why = f"the engine died: {str(error) or type(error).__name__}"
        self._inbox.close(why)
        self._worker.end(self._inbox.drain(), "error", why)


class _Table:
    """A threaded engine for other languages: configs cross as JSON."""

    def __init__(self, engine: ThreadedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def get_default_generation_config(self) -> str:
        return self._engine.get_default_generation_config().asjson()

    def get_complete_engine_config(self) -> str:
        return self._engine.get_complete_engine_config().asjson()


def create_threaded_engine() -> Any:
    """A new engine's table of functions."""
    return function_table(_Table(ThreadedEngine.Create()), FUNCTIONS)


tvm_ffi.register_global_func(
    "mlc.serve.create_threaded_engine", create_threaded_engine, override=True
)
