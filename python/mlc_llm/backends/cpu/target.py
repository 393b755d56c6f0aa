"""Which kernels and which LLVM target this machine gets.

Only functions that compile load TVM, because it takes longer than all the rest of a start.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.backends.cpu import amx
from mlc_llm.backends.cpu.isa import ISAS, VNNI, VNNI_BF16, Isa
from mlc_llm.errors import InvalidField
from mlc_llm.record import record
from mlc_llm.support.machine import cpu_flags

if TYPE_CHECKING:
    import tvm

KERNELS_VARIABLE = "MLC_LLM_KERNELS"
"""Environment variable that forces a set of kernels: auto or one of `ISAS`."""

_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi1", "bmi2")
_VNNI_NEEDS = (
    "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni", *_AVX2_NEEDS,
)  # fmt: skip
_NEEDS = {
    "amx": (*_VNNI_NEEDS, "amx_tile", "amx_int8", "amx_bf16"),
    "vnni-bf16": (*_VNNI_NEEDS, "avx512_bf16"),
    "vnni": _VNNI_NEEDS,
    "avx-vnni": (*_AVX2_NEEDS, "avx_vnni"),
    "avx2": _AVX2_NEEDS,
    "i8mm": ("asimd", "asimddp", "i8mm"),
    "dotprod": ("asimd", "asimddp"),
    "portable": (),
}  # fmt: skip
"""Instructions a set of kernels uses, as Linux spells them."""
_LLVM_NAMES = {
    "bmi1": "bmi", "avx_vnni": "avxvnni", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16", "asimd": "neon", "asimddp": "dotprod",
}  # fmt: skip
"""Where LLVM spells them otherwise."""

_X86 = ("x86_64", "amd64", "i686", "x86")
_ARM = ("aarch64", "arm64")
_FAMILIES = {
    "amx": _X86, "vnni-bf16": _X86, "vnni": _X86, "avx-vnni": _X86, "avx2": _X86,
    "i8mm": _ARM, "dotprod": _ARM,
}  # fmt: skip
"""Processors, as operating systems and LLVM's triples name them; portable kernels run on all."""
_CPU = {
    "amx": "sapphirerapids", "vnni-bf16": "cooperlake", "vnni": "cascadelake",
    "avx-vnni": "haswell", "avx2": "haswell",
}  # fmt: skip
"""The least processor that has the instructions; for other sets, the least of the family.
Compiling for exactly that one makes libraries reproducible. On a newer processor its own name gave
the same speed."""
_EXTENSIONS = {
    "avx-vnni": ("+avxvnni",), "i8mm": ("+dotprod", "+i8mm"), "dotprod": ("+dotprod",),
}  # fmt: skip
"""Instructions that kernels use beyond that processor: no named one has just these."""


@record()
class Machine:
    """The kernels that a machine gets."""

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
    possible = [isa for isa in ISAS.values() if not missing_features(isa.name)]
    if name == "auto":
        return Machine(_fitted(possible[0]), forced=False)
    isa = ISAS[name]
    if isa not in possible:
        lacking = ", ".join(missing_features(name))
        raise InvalidField(
            f"kernels ({KERNELS_VARIABLE})", name, f"this machine lacks the instructions {lacking}"
        )
    return Machine(_fitted(isa), forced=True)


def _fitted(isa: Isa) -> Isa:
    """The kernels as this machine runs them best. AVX-VNNI tells Zen 5 from Zen 4."""
    is_newer = "avx_vnni" in (cpu_flags() or ())
    return replace(isa, asks=True) if is_newer and isa in (VNNI, VNNI_BF16) else isa


def fastest() -> Isa:
    """The best kernels for processors of this family, whatever this one lacks."""
    return next(isa for isa in ISAS.values() if _is_for(isa.name, platform.machine()))


def missing_features(name: str) -> tuple[str, ...]:
    """Instructions that these kernels need and the machine does not have."""
    # Emulated machines may show the flags of the real one.
    if not _is_for(name, platform.machine()):
        return _NEEDS[name]
    flags = cpu_flags()
    lacking = tuple(feature for feature in _NEEDS[name] if not _host_has(feature, flags))
    if not lacking and ISAS[name].amx_tiles and not amx.permitted():
        return ("amx_tile (the system does not permit it)",)
    return lacking


def processor(isa: Isa, family: str | None = None) -> str:
    """LLVM's name of the processor that these kernels are compiled for; default: of this family."""
    is_x86 = (family or platform.machine()).lower() in _X86
    return _CPU.get(isa.name, "x86-64") if is_x86 else "generic"


def target_for(isa: Isa, triple: str | None = None) -> tvm.target.Target:
    """The LLVM target of a set of kernels: this system's, or that of an LLVM triple.

    Raises InvalidField for a triple of processors that the kernels are not for.
    """
    family = triple.split("-")[0] if triple else platform.machine()
    if triple and not _is_for(isa.name, family):
        raise InvalidField("triple", triple, f"{isa.name} kernels are for {_FAMILIES[isa.name]}")
    options: dict[str, object] = {"mtriple": triple} if triple else {}
    if isa.name in _EXTENSIONS:
        options["mattr"] = list(_EXTENSIONS[isa.name])
    return _target_of(processor(isa, family), **options)


def _is_for(name: str, family: str) -> bool:
    """Whether a set of kernels runs on a family of processors."""
    return name not in _FAMILIES or family.lower() in _FAMILIES[name]


def _host_has(feature: str, flags: frozenset[str] | None) -> bool:
    """Whether this machine has an instruction; flags: as the system names them, or None."""
    if flags is not None:
        return feature in flags
    from tvm.target import codegen

    host = _target_of(str(codegen.llvm_get_system_cpu()))
    return bool(codegen.llvm_cpu_has_features(_LLVM_NAMES.get(feature, feature), host))


def _target_of(cpu: str, **options: object) -> tvm.target.Target:
    """LLVM's target of a processor, with all optimisations."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "opt-level": 3, **options})
