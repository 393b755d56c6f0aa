"""`ThreadedEngine`: an engine with its own thread, so that callers never wait for the model.

It has two loops, each for one thread: one works, the other gives outputs to the callback, so a slow
callback delays nothing else. Every request that `add_request` took ends with exactly one usage
output, whatever fails.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

import tvm_ffi

from mlc_llm.errors import EngineDead, MLCError, forked
from mlc_llm.protocol import checks
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import Data, RequestStreamOutput, checked_callback
from mlc_llm.serve.engine_calls import InCallback, Inside, Stoppable
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder, checked_recorder
from mlc_llm.serve.ffi_table import function_table
from mlc_llm.serve.opening.adapters import adapter as adapter_of
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.open_engine import OpenEngine
from mlc_llm.serve.prompts import data_of_inputs
from mlc_llm.serve.request import Request, checked_request
from mlc_llm.serve.threaded.inbox import (
    AdapterChange,
    Arrival,
    CoreCall,
    DebugCall,
    Instruction,
    InstructionKind,
    Payload,
)
from mlc_llm.serve.threaded.intake import Intake
from mlc_llm.serve.threaded.open_requests import OpenRequests
from mlc_llm.serve.threaded.outbox import Outbox
from mlc_llm.serve.threaded.work_loop import Progress, WorkLoop
from mlc_llm.serve.threaded.worker import Worker

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
MAX_NAME_CHARS = 1024
TERMINATED = "the engine was terminated"


_log = logging.getLogger(__name__)


class ThreadedEngine(Stoppable):
    """All methods may be called from any thread, also from the callback.

    Call `init_threaded_engine` before everything else; only the loops may start before it.
    `reload`, `unload`, `load_adapter`, `drop_adapter`, `call_core` and
    `debug_call_func_on_all_worker` wait until they are done and raise what went wrong; while no
    background loop runs, the calling thread does the work itself. The other methods wait for no
    engine; `add_request` takes as long as its prompt needs to become tokens. After
    `exit_background_loop`, or after a loop failed, every method that asks for work raises
    `EngineDead`.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._outbox = Outbox()
        open_requests = OpenRequests()
        self._worker = Worker(self._outbox, open_requests)
        self._loop = WorkLoop(self._worker)
        self._intake = Intake(open_requests, self._loop.put, self._worker.admission)
        self._callback: StreamCallback | None = None
        self.stop_at_the_end()

    @staticmethod
    def Create() -> ThreadedEngine:
        """A new engine without a model and without threads."""
        return ThreadedEngine()

    def init_threaded_engine(
        self,
        device: object,
        request_stream_callback: StreamCallback | None = None,
        trace_recorder: EventTraceRecorder | None = None,
    ) -> None:
        """`device`: a name or a TVM device. The stream-back loop calls the callback with lists of
        outputs. Raises `MLCError` without a callback, and if it is called a second time;
        `InvalidField` for a callback that cannot be called, or a recorder that is none."""
        self._check_process()
        checked_callback(request_stream_callback)
        checked_recorder(trace_recorder)
        if request_stream_callback is None:
            raise MLCError("a threaded engine needs a request stream callback")
        if self._callback is not None:
            raise MLCError("the engine was initialized before")
        self._worker.device, self._worker.trace = str(device), trace_recorder
        self._callback = request_stream_callback

    def reload(self, engine_config_json_str: str) -> None:
        """Abort all requests, unload the model, and open the model that the config names.

        Raises `UserError` for a wrong config; then nothing has changed. Raises whatever opening the
        model raised; then nothing is loaded, and `reload` may be called again.
        """
        config = EngineConfig.from_json(engine_config_json_str)
        self._ask(InstructionKind.kReloadEngine, config)

    def unload(self) -> None:
        """Abort all requests and free the model's memory."""
        self._ask(InstructionKind.kUnloadEngine, None)

    def reset(self) -> None:
        """Abort all requests, clear all state and metrics. Does nothing if no model is loaded."""
        self.check_usable()
        self._loop.put(Instruction(InstructionKind.kResetEngine))

    def create_request(
        self,
        request_id: str,
        inputs: str | Data | Sequence[str | Data],
        generation_config: str | GenerationConfig | Mapping[str, object],
        adapter: str = "",
    ) -> Request:
        """`inputs`: one `Data` or several; a string is a text. `generation_config`: a config, its
        JSON, or a dict of its fields; the model's defaults fill the fields that it does not set.
        `adapter`: the name of a LoRA adapter, or none.
        Raises `UserError` for a wrong value, `MLCError` if no model is loaded."""
        if isinstance(generation_config, str):
            config = GenerationConfig.from_json(generation_config)
        else:
            config = GenerationConfig.of(generation_config)
        loaded = self.loaded
        config = config.merged_over(loaded.bundle.defaults)
        inputs = data_of_inputs(inputs)
        return Request(request_id, inputs, config, loaded.load_id, adapter=adapter)

    def add_request(self, request: Request) -> None:
        """Queue a request. If the engine refuses it later, its stream ends with `error` and a
        usage. The same happens to a request that was made for a model which is no longer loaded.

        The slow work (tokens, tables, a grammar) runs here, on the caller's thread, while streams
        go on; `abort_request` ends the request during this time too. Raises `InvalidField` while
        another request with this id runs.
        """
        made = checked_request(request)
        self.make_and_add(made.request_id, made.n, lambda: made)

    def make_and_add(
        self, request_id: str, n: int, make: Callable[[], Request], *, raises: bool = False
    ) -> None:
        """Like `add_request`, for a request with this id and `n` that `make` makes slowly. Raises
        what `make` raises, unless the request was aborted before. With `raises`, it also raises the
        `UserError` for which the engine would refuse the request."""
        arrival = self.make_ready(request_id, n, make, raises=raises)
        if arrival is not None:
            self.add_ready(arrival)

    def make_ready(
        self, request_id: str, n: int, make: Callable[[], Request], *, raises: bool = False
    ) -> Arrival | None:
        """The first half of `make_and_add`: all that needs no engine. The request is open; add it
        with `add_ready`, or abort it. None: it was aborted meanwhile."""
        self.check_usable()
        return self._intake.make_ready(request_id, n, make, raises=raises)

    def add_ready(self, arrival: Arrival) -> None:
        """Queue a request that `make_ready` has made."""
        self.check_usable()
        self._intake.add_ready(arrival)

    def abort_request(self, request_id: str) -> None:
        """End a request: its stream ends with `abort` and a usage. Unknown ids are ignored."""
        self.check_usable()
        self._intake.abort(str(request_id))

    def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file, under a name for requests, and wait
        for it. Its files are read on the caller's thread, while streams go on. Raises `UserError`
        for one that cannot be used or for which there is no room (`max_adapters`)."""
        loaded = self.loaded
        parts = adapter_of(name, source, loaded.config, loaded.bundle)
        change = AdapterChange(name, parts, loaded.load_id)
        self._ask(InstructionKind.kChangeAdapters, change)

    def drop_adapter(self, name: str) -> None:
        """Requests that run with the adapter go on to their end; no other one gets it. Raises
        `InvalidField` for a name that is not there."""
        change = AdapterChange(name, None, self.loaded.load_id)
        self._ask(InstructionKind.kChangeAdapters, change)

    def debug_call_func_on_all_worker(self, func_name: str, func_args: str | None = None) -> None:
        """Call a TVM global function on the engine's thread, between two steps, and wait for it.

        Raises `MLCError` if no model is loaded, `InvalidField` for an unknown name.
        """
        checks.string("func_name", func_name, MAX_NAME_CHARS)
        kind = InstructionKind.kDebugCallFuncOnAllAllWorker
        self._ask(kind, DebugCall(func_name, func_args))

    def call_core(self, function: Callable[[EngineCore], None]) -> None:
        """Call a function with the core on the engine's thread, between two steps, and wait for it.
        It must be quick: nothing is computed meanwhile. Raises what the function raises, and
        `MLCError` if no model is loaded."""
        self._ask(InstructionKind.kCallCore, CoreCall(function))

    def run_background_loop(self) -> None:
        """The engine's thread runs this. It returns after `exit_background_loop`."""
        self._check_process()
        with Inside(), computing_here():
            self._loop.run()

    def run_background_stream_back_loop(self) -> None:
        """The callback's thread runs this. It returns after the callback got the last output.

        If the callback raises, the error is logged and the callback is called again later. The
        requests of these outputs are aborted, because a part of their text may be lost. Raises
        `MLCError` if another thread runs it.
        """
        self._check_process()
        with self._outbox.reading(), Inside():
            self._run_stream_back_loop()

    def _run_stream_back_loop(self) -> None:
        while (outputs := self._outbox.take()) is not None:
            assert self._callback is not None  # requests, and so outputs, need a callback
            try:
                with InCallback():
                    self._callback(outputs)
            except BaseException:
                ids = list(dict.fromkeys(output.request_id for output in outputs))
                _log.exception("the request stream callback raised; requests %s", ids)
                for request_id in ids:
                    self.abort_request(request_id)

    def exit_background_loop(self) -> None:
        """End both loops: all requests are aborted, the callback gets every output, and the model
        is unloaded. Returns at once. A second call, or a call in a forked process, does nothing."""
        if os.getpid() == self._process:
            self._loop.close(TERMINATED)

    stop = exit_background_loop

    def get_default_generation_config(self) -> GenerationConfig:
        """The loaded model's defaults. Raises `MLCError` if no model is loaded."""
        return self.loaded.bundle.defaults

    def get_complete_engine_config(self) -> EngineConfig:
        """The config with every limit. Raises `MLCError` if no model is loaded."""
        return self.loaded.config

    def get_model_bundle(self) -> ModelBundle:
        """Tokenizer, template and files of the loaded model."""
        return self.loaded.bundle

    @property
    def loaded(self) -> OpenEngine:
        """The loaded engine. Only the engine's thread may use its core. Raises `MLCError` if no
        model is loaded."""
        self.check_usable()
        loaded = self._worker.loaded
        if loaded is not None:
            return loaded
        if self._loop.closed is not None:
            raise EngineDead(self._loop.closed)
        raise MLCError(self._worker.why_not_loaded)

    @property
    def progress(self) -> Progress:
        """Whether the engine's thread moves. Any thread may ask, at any time."""
        return self._loop.progress

    def check_usable(self) -> None:
        """Raise `MLCError` before `init_threaded_engine` and in a forked process."""
        self._check_process()
        if self._callback is None:
            calls = "init_threaded_engine, or init_background_engine of the JSON FFI,"
            raise MLCError(f"the engine is not initialized; call {calls} first")

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
        """Raise `MLCError` in a forked process: it has copies of the locks, but no threads."""
        if os.getpid() != self._process:
            raise forked(self._process)

    def _ask(self, kind: InstructionKind, payload: Payload) -> None:
        self.check_usable()
        self._loop.ask(kind, payload)


class _Table:
    """A threaded engine for other languages: configs are passed as JSON."""

    def __init__(self, engine: ThreadedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def get_default_generation_config(self) -> str:
        return self._engine.get_default_generation_config().asjson()

    def get_complete_engine_config(self) -> str:
        return self._engine.get_complete_engine_config().asjson()


def create_threaded_engine() -> tvm_ffi.Map:
    """The table of functions of a new engine."""
    return function_table(_Table(ThreadedEngine.Create()), FUNCTIONS)


tvm_ffi.register_global_func(
    "mlc.serve.create_threaded_engine", create_threaded_engine, override=True
)
