"""Which backend computes: by name, by environment variable, or the best that this machine has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import KERNELS_VARIABLE, choose
from mlc_llm.errors import InvalidField, UnusableDevice

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

REFERENCE, CUDA = "reference", "cuda"


def choose_backend(kernels: str | None = None) -> Backend:
    """kernels: "auto", a set of CPU kernels, "cuda" or "reference"; None: what the environment
    says. "auto" are the best CPU kernels: who chooses the device asks whether there is a GPU.

    Raises InvalidField for an unknown name, or kernels whose instructions the machine lacks;
    UnusableDevice if there is no GPU for "cuda".
    """
    name = wanted_kernels(kernels)
    if name == REFERENCE:
        return _reference()
    if name == CUDA:
        return _gpu()
    if name != "auto" and name not in ISAS:
        allowed = f"use one of auto, {', '.join(ISAS)}, {CUDA}, {REFERENCE}"
        raise InvalidField(f"kernels ({KERNELS_VARIABLE})", name, allowed)
    return CpuBackend(choose(name).isa)


def wanted_kernels(kernels: str | None = None) -> str:
    """The name that was given, else what the environment says, else "auto"."""
    return kernels or os.environ.get(KERNELS_VARIABLE) or "auto"


def named_backend(
    kernels: str | None, default: str | None = None, arch: str | None = None
) -> Backend:
    """To compile for any machine: kernels by name, whatever this machine lacks.

    default: where no name is given; None: what `choose_backend` chooses. arch: of the GPU, for
    "cuda"; None: that of this machine's GPU. Raises InvalidField, UnusableDevice.
    """
    name = kernels or default
    if arch is not None and name != CUDA:
        raise InvalidField("arch", arch, f"it is for device '{CUDA}' alone")
    if name == CUDA:
        return _gpu() if arch is None else _gpu_of(arch)
    if name is None:
        return choose_backend()
    if name not in (*ISAS, REFERENCE):
        raise InvalidField("kernels", name, f"use one of {', '.join(ISAS)}, {CUDA}, {REFERENCE}")
    return backend_of(name)


def backend_of(name: str) -> Backend:
    """The backend that a library names in its metadata. Raises KeyError for an unknown one."""
    if name == CUDA:
        return _gpu_of(None)
    return _reference() if name == REFERENCE else CpuBackend(ISAS[name])


def why_no_gpu() -> str | None:
    """Why no model can run on an NVIDIA GPU here, in a line; None: one can."""
    from mlc_llm.backends.cuda.state import why_not

    return why_not()


def has_gpu() -> bool:
    """Whether the driver shows an NVIDIA GPU, usable or not. Takes no time where there is none."""
    from mlc_llm.backends.cuda.driver import Driver

    try:
        return bool(Driver().gpus())
    except UnusableDevice:
        return False


def _gpu() -> Backend:
    """The backend of this machine's GPU. Raises UnusableDevice."""
    from mlc_llm.backends.cuda.driver import usable_gpu

    found = usable_gpu().architecture
    assert found is not None, "a usable GPU has one"
    return _gpu_of(found.name)


def _gpu_of(name: str | None) -> Backend:
    """The backend of GPUs with that architecture; None: of none, for what is the same on all."""
    from mlc_llm.backends.cuda.architectures import architecture
    from mlc_llm.backends.cuda.backend import CudaBackend

    return CudaBackend(None if name is None else architecture(name).name)


def _reference() -> Backend:
    from mlc_llm.backends.reference.backend import ReferenceBackend

    return ReferenceBackend()
