"""`JSONFFIEngine`: OpenAI's chat API over the JSON FFI, for programs without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from mlc_llm.json_ffi.module import FUNCTIONS, MORE_FUNCTIONS
from mlc_llm.json_ffi.state import EngineState, Functions
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    ChatCompletionStreamResponse,
)
from mlc_llm.serve import engine_utils
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.engine_metrics import query_engine_metrics
from mlc_llm.serve.opening.arguments import check_engine_config, detect_device
from mlc_llm.serve.sync_engine import _create_tvm_module
from mlc_llm.serve.threaded_loops import LoopThreads

if TYPE_CHECKING:
    import tvm

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
        self,
        *,
        messages: list[dict[str, Any]],
        model: str | None = None,
        frequency_penalty: float | None = None,
        presence_penalty: float | None = None,
        logprobs: bool = False,
        top_logprobs: int = 0,
        logit_bias: dict[int, float] | None = None,
        max_tokens: int | None = None,
        n: int = 1,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stream: bool = True,
        stream_options: dict[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Literal["none", "auto"] | dict[str, Any] | None = None,
        user: str | None = None,
        response_format: dict[str, Any] | None = None,
        request_id: str | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> Iterator[ChatCompletionStreamResponse]:
        """The chunks of the answer; the one with the usage only where `stream_options` asks.

        `extra_body` holds more fields of the request: `debug_config` and others that OpenAI's API
        does not have. When the first chunk is asked for: raises `ValueError` for `stream=False`,
        and `UserError` naming the field that is wrong. What the engine refuses is a chunk with
        finish reason `error` and the reason as its text.
        """
        given = locals()
        if not stream:
            raise ValueError("JSONFFIEngine only support stream=True")
        own = {name: given[name] for name in given if name in ChatCompletionRequest.model_fields}
        request = ChatCompletionRequest.parse({**own, **(extra_body or {})})
        yield from self._state.handle_chat_completion(
            self._ffi,
            json.dumps(request.model_dump(mode="json", by_alias=True)),
            request.include_usage,
            request_id or f"chatcmpl-{engine_utils.random_uuid()}",
        )


class Chat:
    """`chat.completions`, as in OpenAI's client."""

    completions: Completions

    def __init__(self, ffi: Functions, state: EngineState, background_loops: BackgroundLoops):
        self.completions = Completions(ffi, state, background_loops)


class JSONFFIEngine:
    """A model behind `chat.completions.create`, which streams; many requests may run at once.

    `tokenizer` is the model's, `engine_config` what was asked for. An engine that is no longer used
    is terminated; `terminate` does it at once.
    """

    chat: Chat

    def __init__(
        self,
        model: str | None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: see `open_model`; None is the default model. `engine_config`: may be a dict of
        its fields. Raises `UserError` for a model, a device or a config that cannot be used; no
        thread is left then."""
        config = EngineConfig.of(engine_config)
        check_engine_config(model, model_lib, mode, config)
        if isinstance(device, str):
            device = detect_device(device)
        self.engine_config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self._state = EngineState()
        self._ffi = _create_tvm_module(
            "mlc.json_ffi.CreateJSONFFIEngine", ffi_funcs=FUNCTIONS + MORE_FUNCTIONS
        )
        self._background_loops = BackgroundLoops(self._ffi)
        try:
            callback = self._state.get_request_stream_callback()
            self._ffi["init_background_engine"](
                int(device.dlpack_device_type()), int(device.index), callback
            )
            self._ffi["reload"](self.engine_config.asjson())
            self.tokenizer = self._ffi["get_model_bundle"]().tokenizer
        except BaseException:
            self.terminate()
            raise
        self.chat = Chat(self._ffi, self._state, self._background_loops)

    def metrics(self) -> EngineMetrics:
        """The engine's numbers as they stand; also while requests run."""
        return query_engine_metrics(self)

    def terminate(self) -> None:
        """Abort everything and end the threads. Every reader gets its end. May be called again."""
        self._background_loops.terminate()
        self._state.close()

    def _raw_chat_completion(
        self, request_json_str: str, include_usage: bool, request_id: str
    ) -> Iterator[ChatCompletionStreamResponse]:
        """As `create`, for a request that is JSON already."""
        return self._state.handle_chat_completion(
            self._ffi, request_json_str, include_usage, request_id
        )

    def _test_reload(self) -> None:
        self._ffi["reload"](self.engine_config.asjson())

    def _test_reset(self) -> None:
        self._ffi["reset"]()

    def _test_unload(self) -> None:
        self._ffi["unload"]()
