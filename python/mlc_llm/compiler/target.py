"""Which kernels and which LLVM target this machine gets.

Only what compiles loads TVM, which takes longer than everything else a start does.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField
from mlc_llm.kernels.isa import AVX2, ISAS, PORTABLE, VNNI, Isa
from mlc_llm.support.machine import cpu_flags

if TYPE_CHECKING:
    import tvm

KERNELS_VARIABLE = "MLC_LLM_KERNELS"
"""Environment variable that forces a set of kernels: auto, vnni, avx2 or portable."""

_NEEDS = {
    "vnni": (
        "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni",
        "avx2", "fma", "f16c", "bmi1", "bmi2",
    ),
    "avx2": ("avx2", "fma", "f16c", "bmi1", "bmi2"),
    "portable": (),
}  # fmt: skip
"""Instructions a set of kernels uses, as Linux spells them."""

_X86 = ("x86_64", "amd64", "i686", "x86")
_CPU = {"vnni": "cascadelake", "avx2": "haswell", "portable": "x86-64"}
"""The least processor that has them. Compiling for exactly that one makes libraries reproducible;
measured on a newer processor, its own name gave the same speed."""


@dataclass(frozen=True)
class Machine:
    """The kernels that it gets."""

    isa: Isa
    forced: bool
    """The choice came from the caller or the environment, not from the machine."""


def choose(kernels: str | None = None) -> Machine:
    """Kernels by name, by environment variable, or the best this machine can run.

    Raises InvalidField for an unknown name or kernels whose instructions the machine lacks.
    """
    name = kernels or os.environ.get(KERNELS_VARIABLE) or "auto"
    if name != "auto" and name not in ISAS:
        allowed = "use one of auto, " + ", ".join(ISAS)
        raise InvalidField(f"kernels ({KERNELS_VARIABLE})", name, allowed)
    possible = [isa for isa in (VNNI, AVX2, PORTABLE) if not missing_features(isa.name)]
    if name == "auto":
        return Machine(possible[0], forced=False)
    isa = ISAS[name]
    if isa not in possible:
        lacking = ", ".join(missing_features(name))
        raise InvalidField(
            f"kernels ({KERNELS_VARIABLE})", name, f"this machine lacks the instructions {lacking}"
        )
    return Machine(isa, forced=True)


def missing_features(name: str) -> tuple[str, ...]:
    """Instructions that these kernels need and the machine does not have."""
    return tuple(feature for feature in _NEEDS[name] if not _host_has(feature))


def processor(isa: Isa) -> str:
    """LLVM's name of the processor that these kernels are compiled for."""
    return _CPU[isa.name] if platform.machine().lower() in _X86 else "generic"


def target_for(isa: Isa) -> tvm.target.Target:
    """The LLVM target of a set of kernels on this processor family."""
    return _target_of(processor(isa))


def _host_has(feature: str) -> bool:
    flags = cpu_flags()
    if flags is not None:
        return feature in flags
    from tvm.target import codegen

    host = _target_of(str(codegen.llvm_get_system_cpu()))
    return bool(codegen.llvm_cpu_has_features(feature.replace("_", ""), host))


def _target_of(cpu: str) -> tvm.target.Target:
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "opt-level": 3})
