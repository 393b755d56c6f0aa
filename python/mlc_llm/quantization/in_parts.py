"""Long loops over rows or blocks, in parts on all cores: NumPy lets other threads run meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_parts(count: int, step: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, end)` for all parts of 0 .. count, each of `step`. Raises what it does."""
    starts = range(0, count, step)
    if len(starts) < 2:
        for start in starts:
            work(start, count)
        return
    with ThreadPoolExecutor(_cores()) as pool:
        ends = (min(start + step, count) for start in starts)
        for _ in pool.map(work, starts, ends):
            pass


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
