"""The engine that the global function `mlc.serve.create_engine` makes: a table of functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm_ffi

from mlc_llm.errors import MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import RequestStreamOutput, checked_callback
from mlc_llm.serve.engine_calls import InCallback
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder, checked_recorder
from mlc_llm.serve.ffi_table import function_table
from mlc_llm.serve.opening.adapters import adapter
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine
from mlc_llm.serve.prompts import data_of_inputs
from mlc_llm.serve.request import Request, checked_request
from mlc_llm.support.interrupts import HeldInterrupts

if TYPE_CHECKING:
    import tvm

StreamCallback = Callable[[list[RequestStreamOutput]], None]

FUNCTIONS = (
    "init",
    "add_request",
    "abort_request",
    "has_request",
    "step",
    "reset",
    "json_metrics",
    "get_request_stream_callback",
    "set_request_stream_callback",
    "create_request",
    "get_complete_engine_config",
    "get_model_bundle",
    "get_longest_sequence",
    "load_adapter",
    "drop_adapter",
)


class SyncEngineModule:
    """One engine. Its caller steps it. Call `init` before any other function.

    Ctrl-C waits for the end of an operation of the core, so that no operation stops in the middle.
    The next operation then delivers the outputs of the interrupted one.
    """

    def __init__(self) -> None:
        self._opened: OpenEngine | None = None
        self._callback: StreamCallback | None = None
        self._undelivered: list[RequestStreamOutput] = []

    def init(
        self,
        config_json: str,
        device: str | tvm.runtime.Device,
        callback: StreamCallback | None = None,
        trace: EventTraceRecorder | None = None,
        reading: ReadAhead | None = None,
    ) -> None:
        """Open the model that the config names. `device`: a name or a TVM device. `reading`:
        weights whose reading has begun. Raises `UserError` for a wrong argument, and `MLCError` if
        a model is open already."""
        if self._opened is not None:
            raise MLCError("the engine was initialized before; make another one")
        config = EngineConfig.from_json(config_json)
        checked_callback(callback)
        checked_recorder(trace)
        self._opened = open_engine(config, str(device), trace, reading)
        self._callback = callback

    def create_request(self, request_id: str, inputs: object, config_json: str) -> Request:
        """`inputs`: one `Data`, or an array of them. A string is a text.

        The model's defaults fill the open fields of the config. Raises `UserError` for a request
        that is refused.
        """
        defaults = self._engine.bundle.defaults
        config = GenerationConfig.from_json(config_json).merged_over(defaults)
        return Request(request_id, data_of_inputs(inputs), config)

    def add_request(self, request: Request) -> None:
        with HeldInterrupts():
            self._undelivered += self._engine.core.add_request(checked_request(request))
        self._deliver()

    def abort_request(self, request_id: str) -> None:
        with HeldInterrupts():
            self._undelivered += self._engine.core.abort_request(request_id)
        self._deliver()

    def has_request(self, request_id: str) -> bool:
        """False when the usage of the request has been delivered."""
        return self._engine.core.has_request(request_id)

    def step(self) -> None:
        """One step. It calls the callback once if there are outputs."""
        core = self._engine.core
        if self._callback is None:
            raise MLCError("the request stream callback is not set; set it before stepping")
        with HeldInterrupts():
            self._undelivered += core.step()
        self._deliver()

    def reset(self) -> None:
        """Abort all requests and clear all state. It works after any interrupt."""
        with HeldInterrupts():
            self._undelivered += self._engine.core.reset()
        self._deliver()

    def load_adapter(self, name: str, source: str) -> None:
        """Raises `UserError` for an adapter that cannot be used."""
        opened = self._engine
        parts = adapter(name, source, opened.config, opened.bundle)
        opened.core.adapters.load(name, parts)

    def drop_adapter(self, name: str) -> None:
        """Raises `InvalidField` for a name that is not there."""
        self._engine.core.adapters.drop(name)

    def json_metrics(self) -> str:
        return json.dumps(self._engine.core.metrics().metrics)

    def get_request_stream_callback(self) -> StreamCallback | None:
        return self._callback

    def set_request_stream_callback(self, callback: StreamCallback | None) -> None:
        """Set the callback. The old one first gets the outputs of an interrupted operation. Raises
        `InvalidField` for one that cannot be called."""
        checked_callback(callback)
        self._deliver()
        self._callback = callback

    def get_complete_engine_config(self) -> str:
        """The config with all inferred limits, as JSON."""
        return self._engine.config.asjson()

    def get_model_bundle(self) -> ModelBundle:
        """Tokenizer, template and files of the model. Only Python can use it."""
        return self._engine.bundle

    def get_longest_sequence(self) -> int:
        """See `EngineCore.longest_sequence`."""
        return self._engine.core.longest_sequence

    @property
    def _engine(self) -> OpenEngine:
        if self._opened is None:
            raise MLCError("the engine is not initialized; call init first")
        return self._opened

    def _deliver(self) -> None:
        """Give the outputs to the callback. Without a callback they wait for one."""
        if self._callback is not None and self._undelivered:
            # Ctrl-C is raised only where a function begins, so not between these two lines.
            ready, self._undelivered = self._undelivered, []
            with InCallback():
                self._callback(ready)


def create_engine() -> tvm_ffi.Map:
    """The table of functions of a new engine."""
    return function_table(SyncEngineModule(), FUNCTIONS)


tvm_ffi.register_global_func("mlc.serve.create_engine", create_engine, override=True)
