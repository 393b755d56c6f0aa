"""What all engines do with their arguments before a model is opened."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from mlc_llm.errors import InvalidField, MLCError, ModelNotFound
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.model_args import ModelBundle, open_model

__all__ = [
    "EngineConfig",
    "EngineMetrics",
    "ModelInfo",
    "_check_engine_config",
    "_parse_models",
    "_process_model_args",
    "_query_engine_metrics",
    "detect_device",
]

MOCK_ECHO = "mock://echo"
DEVICE_VARIABLE = "MLC_LLM_DEVICE"
_ACCELERATORS = ("cuda", "rocm", "metal", "vulkan", "opencl")
_NO_ACCELERATOR = (
    "this version runs models on the CPU only: give 'cpu' or 'auto' "
    f"(or set {DEVICE_VARIABLE}=cpu, and programs that name an accelerator run on the CPU)"
)

_log = logging.getLogger(__name__)


class ModelInfo(NamedTuple):
    """One model that an engine is made of. None: the default model; a library made when needed."""

    model: str | None
    model_lib: str | None = None


def detect_device(device: str) -> tvm_ffi.Device:
    """The TVM device of a name: `auto`, `cpu`, or that with an index.

    Raises `InvalidField` for any other. Accelerators have no kernels here yet, so they are refused
    by name. One exception, for programs written for another machine (the example of the sync
    engine's reference page says `device="cuda"`): where the environment has `MLC_LLM_DEVICE=cpu`,
    the name of an accelerator stands for the CPU, with a line in the log.
    """
    kind, _, index = device.partition(":")
    if kind in _ACCELERATORS and (not index or index.isdigit()):
        if os.environ.get(DEVICE_VARIABLE) != "cpu":
            raise InvalidField("device", device, _NO_ACCELERATOR)
        _log.warning("device %s: the model runs on the CPU, as %s says", device, DEVICE_VARIABLE)
    elif kind not in ("auto", "cpu") or index not in ("", "0"):
        raise InvalidField("device", device, "should be 'auto' or 'cpu'")
    return tvm_ffi.device("cpu", 0)


def _check_engine_config(
    model: str | None, model_lib: str | None, mode: str, engine_config: EngineConfig
) -> None:
    """Raise `InvalidField` where the config contradicts the engine's own arguments."""
    for name, argument in (("model", model), ("model_lib", model_lib), ("mode", mode)):
        value = getattr(engine_config, name)
        if value is not None and value != argument:
            raise InvalidField(
                f"engine_config.{name}", value, f"the engine's argument {name} is {argument!r}"
            )


def _parse_models(
    model: str | None,
    model_lib: str | None,
    additional_models: list[str | tuple[str, str]],
) -> list[ModelInfo]:
    """The main model first, then the additional ones."""
    more = [
        ModelInfo(one) if isinstance(one, str) else ModelInfo(*one) for one in additional_models
    ]
    return [ModelInfo(model, model_lib), *more]


def _process_model_args(
    models: list[ModelInfo], on_file: Callable[[GGUFFile], None] | None = None
) -> list[ModelBundle]:
    """Open every model; `on_file`: see `open_model`.

    Raises `UserError` for a model or a library that is not there.
    """
    for one in models:
        if one.model_lib is not None and not Path(one.model_lib).is_dir():
            raise ModelNotFound(
                f"model_lib {one.model_lib!r}: no such folder; leave it out, and the model is "
                "compiled for this machine"
            )
    return [open_model(one.model, on_file) for one in models]


def _query_engine_metrics(engine: Any) -> EngineMetrics:
    """The metrics of an engine with `chat.completions.create`, through a request of its own.

    Raises `MLCError` when the engine refuses it (nothing is loaded).
    """
    chunks = engine.chat.completions.create(
        messages=[{"role": "user", "content": ""}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"debug_config": {"special_request": "query_engine_metrics"}},
    )
    refusal = "the engine did not answer"
    for chunk in chunks:
        if chunk.usage is not None and chunk.usage.extra is not None:
            return EngineMetrics(chunk.usage.extra)
        for choice in chunk.choices:
            refusal = choice.delta.content or f"the request ended with {choice.finish_reason}"
    raise MLCError(f"no metrics: {refusal}")
