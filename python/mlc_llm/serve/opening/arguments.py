"""Arguments of an engine that are checked before any model is opened."""

from __future__ import annotations

import logging
import os

import tvm_ffi

from mlc_llm.backends.registry import why_no_gpu
from mlc_llm.errors import InvalidField
from mlc_llm.serve.config import EngineConfig

DEVICE_VARIABLE = "MLC_LLM_DEVICE"
_ACCELERATORS = ("cuda", "rocm", "metal", "vulkan", "opencl")
_ON_CPU = (
    "give 'cpu' or 'auto' "
    f"(or set {DEVICE_VARIABLE}=cpu, and programs that name an accelerator run on the CPU)"
)

_log = logging.getLogger(__name__)


def detect_device(device: str) -> tvm_ffi.Device:
    """The TVM device of a name: `auto`, `cpu`, or one of them with the index 0.

    Raises `InvalidField` for any other name. No whole model can run on an accelerator yet, so these
    are refused by name; for `cuda` the message says what else is missing on this machine. There is
    one exception, for programs that were written for another machine (the example on the sync
    engine's reference page says `device="cuda"`): if the environment has `MLC_LLM_DEVICE=cpu`, the
    name of an accelerator means the CPU, and the log says so.
    """
    kind, _, index = device.partition(":")
    if kind in _ACCELERATORS and (not index or index.isdigit()):
        if os.environ.get(DEVICE_VARIABLE) != "cpu":
            raise InvalidField("device", device, _why_not(kind, int(index or 0)))
        _log.warning("device %s: the model runs on the CPU, as %s says", device, DEVICE_VARIABLE)
    elif kind not in ("auto", "cpu") or index not in ("", "0"):
        raise InvalidField("device", device, "should be 'auto' or 'cpu'")
    return tvm_ffi.device("cpu", 0)


def _why_not(kind: str, index: int) -> str:
    """Why an accelerator computes nothing, and what to do."""
    if kind == "cuda":
        return f"{_ON_CPU}: {why_no_gpu(index)}"
    return f"this version runs models on the CPU only: {_ON_CPU}"


def check_engine_config(
    model: str | None, model_lib: str | None, mode: str, engine_config: EngineConfig
) -> None:
    """Raise `InvalidField` if the config contradicts the engine's own arguments."""
    for name, argument in (("model", model), ("model_lib", model_lib), ("mode", mode)):
        value = getattr(engine_config, name)
        if value is not None and value != argument:
            raise InvalidField(
                f"engine_config.{name}", value, f"the engine's argument {name} is {argument!r}"
            )
