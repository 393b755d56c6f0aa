"""Arguments of an engine that are checked before any model is opened."""

from __future__ import annotations

import logging
import os
import re

import tvm_ffi

from mlc_llm.backends.registry import CUDA, has_gpu, wanted_kernels, why_no_gpu
from mlc_llm.errors import InvalidField
from mlc_llm.serve.config import EngineConfig

DEVICE_VARIABLE = "MLC_LLM_DEVICE"
_ACCELERATORS = ("cuda", "rocm", "metal", "vulkan", "opencl")
_ON_CPU = (
    "give 'cpu' or 'auto' "
    f"(or set {DEVICE_VARIABLE}=cpu, and programs that name an accelerator run on the CPU)"
)
_FIRST_GPU = tvm_ffi.device("cuda", 0)

_INDEX = re.compile(r"[0-9]{0,9}")

_log = logging.getLogger(__name__)


def detect_device(device: str, kernels: str | None = None) -> tvm_ffi.Device:
    """The TVM device of a name: `auto`, `cpu` or `cuda`, or one of them with the index 0. `auto` is
    the NVIDIA GPU if there is one, unless `kernels` (see `EngineConfig`) names others.

    Raises `InvalidField` for any other name, and for `cuda` with what is missing on this machine.
    There is one exception, for programs that were written for another machine: if the environment
    has `MLC_LLM_DEVICE=cpu`, the name of an accelerator means the CPU, and the log says so.
    """
    stays_on_cpu = _stays_on_cpu()
    kind, _, index = device.partition(":")
    if kind in _ACCELERATORS and _INDEX.fullmatch(index):
        if not stays_on_cpu:
            return _gpu(device, kind, int(index or 0))
        _log.warning("device %s: the model runs on the CPU, as %s says", device, DEVICE_VARIABLE)
    elif kind not in ("auto", "cpu") or index not in ("", "0"):
        raise InvalidField("device", device, "should be 'auto', 'cpu' or 'cuda'")
    elif kind == "auto" and _takes_gpu(kernels):
        return _FIRST_GPU
    return tvm_ffi.device("cpu", 0)


def device_kernels(device: str, kernels: str | None) -> tuple[str, str | None]:
    """What kind of device a name means, and the kernels that compute there: `kernels`, or those of
    the device. Raises what `detect_device` raises, and InvalidField if the two do not agree."""
    kind = str(detect_device(device, kernels)).partition(":")[0]
    if kind == CUDA and kernels not in (None, "auto", CUDA):
        raise InvalidField("kernels", kernels, f"device {device} has the kernels '{CUDA}' alone")
    if kind != CUDA and kernels == CUDA:
        raise InvalidField("kernels", kernels, "they are for device 'cuda'")
    return kind, CUDA if kind == CUDA else kernels


def _gpu(device: str, kind: str, index: int) -> tvm_ffi.Device:
    """The first NVIDIA GPU. Raises InvalidField with what to do if that is not what is named, or if
    it cannot compute."""
    if kind != CUDA:
        words = f"this version runs models on CPUs and NVIDIA GPUs only: {_ON_CPU}"
        raise InvalidField("device", device, words)
    if index:
        words = "a model runs on the first GPU; CUDA_VISIBLE_DEVICES says which one that is"
        raise InvalidField("device", device, words)
    if why := why_no_gpu():
        raise InvalidField("device", device, f"{_ON_CPU}: {why}")
    return _FIRST_GPU


def _stays_on_cpu() -> bool:
    """Whether the environment says so. Raises InvalidField for another word than `cpu`."""
    said = os.environ.get(DEVICE_VARIABLE, "")
    if said not in ("", "cpu"):
        raise InvalidField(DEVICE_VARIABLE, said, "should be 'cpu', or not set")
    return said == "cpu"


def _takes_gpu(kernels: str | None) -> bool:
    """Whether `auto` is the GPU. A GPU that cannot compute is named in the log."""
    is_named = wanted_kernels(kernels) not in ("auto", CUDA)
    if is_named or _stays_on_cpu() or not has_gpu():
        return False
    if why := why_no_gpu():
        _log.warning("the model runs on the CPU, not on the GPU: %s", why)
    return why is None


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
