"""Which backend computes: by name, by environment variable, or the best that this machine has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import KERNELS_VARIABLE, choose
from mlc_llm.errors import InvalidField

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

REFERENCE = "reference"


def choose_backend(kernels: str | None = None) -> Backend:
    """kernels: "auto", a set of CPU kernels or "reference"; None: what the environment says.

    Raises InvalidField for an unknown name, or kernels whose instructions the machine lacks.
    """
    name = kernels or os.environ.get(KERNELS_VARIABLE) or "auto"
    if name == REFERENCE:
        return _reference()
    if name != "auto" and name not in ISAS:
        allowed = f"use one of auto, {', '.join(ISAS)}, {REFERENCE}"
        raise InvalidField(f"kernels ({KERNELS_VARIABLE})", name, allowed)
    return CpuBackend(choose(name).isa)


def named_backend(kernels: str | None, default: str | None = None) -> Backend:
    """To compile for any machine: kernels by name, whatever this machine lacks.

    default: where no name is given; None: what `choose_backend` chooses. Raises InvalidField.
    """
    name = kernels or default
    if name is None:
        return choose_backend()
    if name not in (*ISAS, REFERENCE):
        raise InvalidField("kernels", name, f"use one of {', '.join(ISAS)}, {REFERENCE}")
    return backend_of(name)


def backend_of(name: str) -> Backend:
    """The backend that a library names in its metadata. Raises KeyError for an unknown one."""
    return _reference() if name == REFERENCE else CpuBackend(ISAS[name])


def why_no_gpu(index: int = 0) -> str:
    """Why no model runs on the NVIDIA GPU of that index: in this version, and on this machine."""
    from mlc_llm.backends.cuda.state import why_not

    return why_not(index)


def _reference() -> Backend:
    from mlc_llm.backends.reference.backend import ReferenceBackend

    return ReferenceBackend()
