"""`SyncMLCEngine`: the caller steps the engine. For tests, debugging and simple batch work.

There is no thread and no OpenAI protocol here; `generate` shows the whole life of its requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import tvm_ffi

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_base import _check_engine_config
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.model_args import ModelBundle
from mlc_llm.serve.prompts import convert_prompts_to_data
from mlc_llm.serve.request import Request
from mlc_llm.serve.stream import RequestTexts
from mlc_llm.serve.sync_module import FUNCTIONS

if TYPE_CHECKING:
    import tvm

__all__ = ["EngineConfig", "SyncMLCEngine", "_create_tvm_module"]


def _create_tvm_module(
    creator: str, ffi_funcs: Sequence[str], creator_args: list[Any] | None = None
) -> dict[str, Callable[..., Any]]:
    """Call the TVM global function `creator`; returns the named functions of what it made."""
    module = tvm_ffi.get_global_func(creator)(*(creator_args or []))
    return {name: module[name] for name in ffi_funcs}


class SyncMLCEngine:
    """A model and the engine around it, advanced by `step`.

    `bundle` holds the model's tokenizer, template and files, `engine_config` the complete config.
    Raises `UserError` for a model, a device or a config that cannot be used.
    """

    def __init__(
        self,
        model: str | None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | None = None,
        enable_tracing: bool = False,
        request_stream_callback: Callable[[list[data.RequestStreamOutput]], None] | None = None,
    ) -> None:
        """`model`: see `open_model`; None is the default model."""
        config = engine_config or EngineConfig()
        _check_engine_config(model, model_lib, mode, config)
        config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self.trace_recorder = EventTraceRecorder() if enable_tracing else None
        self._ffi = _create_tvm_module("mlc.serve.create_engine", ffi_funcs=FUNCTIONS)
        self._ffi["init"](config.asjson(), device, request_stream_callback, self.trace_recorder)
        self.bundle: ModelBundle = self._ffi["get_model_bundle"]()
        self.tokenizer = self.bundle.tokenizer
        self.engine_config = EngineConfig.from_json(self._ffi["get_complete_engine_config"]())

    def generate(
        self,
        prompts: str | list[str] | list[int] | list[list[int]] | list[list[data.Data]],
        generation_config: GenerationConfig | list[GenerationConfig],
    ) -> tuple[list[list[str]], list[list[list[str]] | None]]:
        """Run all prompts to their end, together.

        Returns, for each prompt, the texts of its `n` branches, and the JSON strings of their
        tokens' log-probabilities (None where they were not asked for). Raises `UserError` for a
        prompt that is refused and `RequestError` for one that failed; nothing of this call is left
        in the engine then. Outputs of other requests go to the callback that was set before.
        """
        inputs = convert_prompts_to_data(prompts)
        configs = _one_config_a_prompt(generation_config, len(inputs))
        before = self._ffi["get_request_stream_callback"]()
        texts = RequestTexts(self.tokenizer, configs, others=before)
        self._ffi["set_request_stream_callback"](texts.put)
        added: list[str] = []
        try:
            for i, (one, config) in enumerate(zip(inputs, configs, strict=True)):
                self.add_request(self.create_request(str(i), one, config))
                added.append(str(i))
            for request_id in added:
                while self._ffi["has_request"](request_id):
                    self.step()
        finally:
            for request_id in added:
                self.abort_request(request_id)
            self._ffi["set_request_stream_callback"](before)
        return texts.results()

    def create_request(
        self,
        request_id: str,
        inputs: data.Data | list[data.Data],
        generation_config: GenerationConfig,
    ) -> Request:
        """A request for `add_request`; the model's defaults fill what the config leaves open."""
        request: Request = self._ffi["create_request"](
            request_id, inputs, generation_config.asjson()
        )
        return request

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `UserError` for one that is refused."""
        self._ffi["add_request"](request)

    def abort_request(self, request_id: str) -> None:
        """End a request; the callback gets its end. Nothing happens for an unknown id."""
        self._ffi["abort_request"](request_id)

    def step(self) -> None:
        """Advance every running request by up to one token and call the callback."""
        self._ffi["step"]()

    def reset(self) -> None:
        """Abort everything and clear all state and metrics."""
        self._ffi["reset"]()

    def metrics(self) -> EngineMetrics:
        """The engine's numbers as they stand."""
        return EngineMetrics(json.loads(self._ffi["json_metrics"]()))


def _one_config_a_prompt(
    config: GenerationConfig | list[GenerationConfig], count: int
) -> list[GenerationConfig]:
    if isinstance(config, GenerationConfig):
        return [config] * count
    if len(config) != count:
        raise InvalidField(
            "generation_config", f"<{len(config)} configs>", f"give one, or one a prompt: {count}"
        )
    return list(config)
