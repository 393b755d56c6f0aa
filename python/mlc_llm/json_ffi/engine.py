"""`JSONFFIEngine`: OpenAI's chat API over the JSON FFI, for programs without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from mlc_llm.json_ffi.module import FUNCTIONS, MORE_FUNCTIONS
from mlc_llm.json_ffi.state import EngineState, Functions
from mlc_llm.protocol.chat_parameters import ChatParameters, check_names
from mlc_llm.protocol.openai_api_protocol import ChatCompletionStreamResponse
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_utils import request_id_of
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.engine_metrics import query_engine_metrics
from mlc_llm.serve.openai.requests import request_of
from mlc_llm.serve.opening.arguments import check_engine_config, detect_device
from mlc_llm.serve.sync_engine import _create_tvm_module
from mlc_llm.serve.threaded.loops import LoopThreads

if TYPE_CHECKING:
    import tvm
    from typing_extensions import Unpack

__all__ = ["BackgroundLoops", "Chat", "Completions", "EngineState", "JSONFFIEngine"]


class BackgroundLoops(LoopThreads):
    """The two threads of the engine behind a table of functions."""


class Completions:
    """`create`, as in OpenAI's client."""

    def __init__(self, ffi: Functions, state: EngineState, background_loops: BackgroundLoops):
        self._ffi = ffi
        self._state = state
        self._background_loops = background_loops

    def create(
        self, **parameters: Unpack[ChatParameters]
    ) -> Iterator[ChatCompletionStreamResponse]:
        """The chunks of the answer. A chunk with the usage comes only if `stream_options` asks.

        Raises `TypeError` for a parameter that does not exist. The first chunk raises `ValueError`
        for `stream=False`, and `UserError` that names a wrong field. If the engine refuses the
        request, a chunk with the finish reason `error` has the reason as its text.
        """
        check_names(parameters)
        return self._answer(parameters)

    def _answer(self, parameters: ChatParameters) -> Iterator[ChatCompletionStreamResponse]:
        if not parameters.get("stream", True):
            raise ValueError("JSONFFIEngine only support stream=True")
        request = request_of(parameters)
        yield from self._state.handle_chat_completion(
            self._ffi,
            json.dumps(request.model_dump(mode="json", by_alias=True)),
            request.include_usage,
            request_id_of(parameters, "chatcmpl"),
        )


class Chat:
    """`chat.completions`, as in OpenAI's client."""

    completions: Completions

    def __init__(self, ffi: Functions, state: EngineState, background_loops: BackgroundLoops):
        self.completions = Completions(ffi, state, background_loops)


class JSONFFIEngine:
    """A model behind `chat.completions.create`, which streams. Many requests may run at once.

    `tokenizer` is the tokenizer of the model, `engine_config` the config that was asked for. An
    engine that is no longer used is terminated; `terminate` does it at once.
    """

    chat: Chat

    def __init__(
        self,
        model: str | None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | Mapping[str, object] | None = None,
    ) -> None:
        """`model`: see `open_model`; None is the default model. `engine_config`: may be a dict of
        its fields. Raises `UserError` for a model, a device or a config that cannot be used. Its
        threads have ended then."""
        config = EngineConfig.of(engine_config)
        check_engine_config(model, model_lib, mode, config)
        found = detect_device(str(device), config.kernels)
        self.engine_config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self._state = EngineState()
        self._ffi = _create_tvm_module(
            "mlc.json_ffi.CreateJSONFFIEngine", ffi_funcs=FUNCTIONS + MORE_FUNCTIONS
        )
        self._background_loops = BackgroundLoops(self._ffi)
        try:
            callback = self._state.get_request_stream_callback()
            self._ffi["init_background_engine"](
                int(found.dlpack_device_type()), int(found.index), callback
            )
            self._ffi["reload"](self.engine_config.asjson())
            self.tokenizer = self._ffi["get_model_bundle"]().tokenizer
        except BaseException:
            self.terminate()
            raise
        self.chat = Chat(self._ffi, self._state, self._background_loops)

    def metrics(self) -> EngineMetrics:
        """The engine's numbers at this moment. It may be called while requests run. Raises
        `MLCError` if no model is loaded."""
        return query_engine_metrics(self)

    def terminate(self) -> None:
        """Abort all requests and end the threads. Every reader gets its end. It may be called more
        than once."""
        self._background_loops.terminate()
        self._state.close()

    def _raw_chat_completion(
        self, request_json_str: str, include_usage: bool, request_id: str
    ) -> Iterator[ChatCompletionStreamResponse]:
        """Like `create`, for a request that is JSON already."""
        return self._state.handle_chat_completion(
            self._ffi, request_json_str, include_usage, request_id
        )

    def _test_reload(self) -> None:
        self._ffi["reload"](self.engine_config.asjson())

    def _test_reset(self) -> None:
        self._ffi["reset"]()

    def _test_unload(self) -> None:
        self._ffi["unload"]()
