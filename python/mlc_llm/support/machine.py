"""What this computer is, read from the operating system; no TVM, nothing is run or measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")

TELLING_FEATURES = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)
"""The features that decide how fast a model runs, in the kernel's spelling."""


@dataclass(frozen=True)
class Machine:
    """Facts about this computer; None where the operating system does not say."""

    system: str
    cpu: str
    cores: int
    """Cores this process may use, not those the machine has."""
    features: tuple[str, ...] | None
    """Those of `TELLING_FEATURES` that the processor has."""
    memory_total: int | None
    """Bytes."""
    memory_free: int | None
    """Bytes that can be had without swapping."""


def describe() -> Machine:
    """Look at the machine as it is now."""
    cpuinfo = _fields(_CPUINFO)
    memory = _fields(_MEMINFO)
    flags = _flags(cpuinfo)
    return Machine(
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        cpu=cpuinfo.get("model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        features=None if flags is None else _telling(flags),
        memory_total=_kilobytes(memory.get("MemTotal")),
        memory_free=_kilobytes(memory.get("MemAvailable")),
    )


def cpu_flags() -> frozenset[str] | None:
    """Every feature of the processor in the kernel's spelling; None where it does not say."""
    return _flags(_fields(_CPUINFO))


def usable_cores() -> int:
    """Cores this process may run on (an affinity mask or a container may allow fewer than all)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _flags(cpuinfo: dict[str, str]) -> frozenset[str] | None:
    flags = cpuinfo.get("flags") or cpuinfo.get("Features")
    return None if flags is None else frozenset(flags.split())


def _telling(flags: frozenset[str]) -> tuple[str, ...]:
    return tuple(feature for feature in TELLING_FEATURES if feature in flags)


def _fields(path: Path) -> dict[str, str]:
    """`name : value` lines; the first of a name counts. Empty where there is no such file."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _kilobytes(text: str | None) -> int | None:
    if text is None or not text.removesuffix("kB").strip().isdigit():
        return None
    return int(text.removesuffix("kB")) * 1024
