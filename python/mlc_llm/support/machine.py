"""Facts about this computer, from the operating system. Nothing is measured; TVM is not needed."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mlc_llm.record import record
from mlc_llm.support import cgroup

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
"""The processor features that decide how fast a model runs, with Linux's names."""


@record()
class Machine:
    """Facts about this computer. None: the operating system does not say."""

    system: str
    cpu: str
    cores: int
    """Cores that this process may use, not all cores of the machine."""
    features: tuple[str, ...] | None
    """Those of `TELLING_FEATURES` that the processor has."""
    memory_total: int | None
    """Bytes; the limit of the container if that is less."""
    memory_free: int | None
    """Bytes that can be used without swapping and within the limit of the container."""


def describe() -> Machine:
    """Read the facts now."""
    cpuinfo = _processor(_CPUINFO)
    memory = _fields(_MEMINFO)
    flags = _flags(cpuinfo)
    limits = cgroup.memory_limits()
    return Machine(
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        cpu=cpuinfo.get("model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        features=None if flags is None else _telling(flags),
        memory_total=_least(_kilobytes(memory.get("MemTotal")), (one.limit for one in limits)),
        memory_free=_least(_kilobytes(memory.get("MemAvailable")), (one.free for one in limits)),
    )


def cpu_flags() -> frozenset[str] | None:
    """All features of the processor with Linux's names; None if the system does not say."""
    return _flags(_processor(_CPUINFO))


@cache
def _processor(path: Path) -> dict[str, str]:
    """It stays the same, and Linux takes long to write the file: it has a part for each core."""
    return _fields(path)


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask, limited by the container's CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup.cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _least(machine: int | None, limits: Iterable[int]) -> int | None:
    """The least of the machine's number and the limits; None if the machine's is not known."""
    return None if machine is None else min([machine, *limits])


def _flags(cpuinfo: dict[str, str]) -> frozenset[str] | None:
    flags = cpuinfo.get("flags") or cpuinfo.get("Features")
    return None if flags is None else frozenset(flags.split())


def _telling(flags: frozenset[str]) -> tuple[str, ...]:
    return tuple(feature for feature in TELLING_FEATURES if feature in flags)


def _fields(path: Path) -> dict[str, str]:
    """Lines `name : value` of a file. The first line of a name counts. Empty without a file."""
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
