"""How many threads compute. TVM reads its environment at the first parallel kernel, so this runs
before any; a value the user set himself stands."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

from mlc_llm.errors import InvalidField

THREADS_VARIABLE = "MLC_NUM_THREADS"
_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")

logger = logging.getLogger(__name__)


def configure_threads() -> int:
    """Sets TVM's number of threads, returns it. Raises InvalidField for a bad number."""
    available = available_cores()
    wanted = os.environ.get(THREADS_VARIABLE)
    count = available if wanted is None else _parse(THREADS_VARIABLE, wanted)
    if count > available:
        logger.warning(
            "%s=%d, but only %d cores are available: expect it to be slower",
            THREADS_VARIABLE, count, available,
        )  # fmt: skip
    os.environ.setdefault("TVM_NUM_THREADS", str(count))
    # Pinning the caller to one core would starve a server's other threads on it.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    return _parse("TVM_NUM_THREADS", os.environ["TVM_NUM_THREADS"])


def available_cores() -> int:
    """Cores this process may use: its affinity mask, cut down by a container's CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota() -> float | None:
    """Cores' worth of time a container may use, or None."""
    try:
        limit, period = _CGROUP_V2.read_text().split()
    except (OSError, ValueError):
        try:
            limit = (_CGROUP_V1 / "cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP_V1 / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not limit.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", "-1", or nothing that we know
    return int(limit) / int(period)


def _parse(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1024:
        raise InvalidField(variable, text, "a whole number from 1 to 1024")
    return int(text)
