"""The limits of Linux control groups (containers, services) on memory and processor time.

Source: the kernel's documentation, admin-guide/cgroup-v2.rst and cgroup-v1/. The limit of a group
holds for all groups inside it, so every group from this process's own up to the root is read. A
container often sees its own group as the root, even if the process has another path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mlc_llm.record import record

_OWN_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


@record()
class MemoryLimit:
    """The memory of one group, in bytes."""

    limit: int
    free: int
    """What can still be used. Cached files count as free, since the system can drop them."""


def memory_limits() -> list[MemoryLimit]:
    """The limits of this process's group and of all groups around it."""
    found = [_memory_limit(group, "memory.max", "memory.current", "") for group in _groups("")]
    found += [
        _memory_limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        for group in _groups("memory")
    ]
    return [one for one in found if one is not None]


def cpu_quota() -> float | None:
    """How many cores' time this process may use; None if there is no limit."""
    found = [_quota(*_words(group / "cpu.max")[:2]) for group in _groups("")]
    for group in _groups("cpu"):
        quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
        found.append(_quota(*quota[:1], *period[:1]))
    return min((one for one in found if one is not None), default=None)


def _memory_limit(group: Path, limit: str, used: str, prefix: str) -> MemoryLimit | None:
    most, taken = _number(group / limit), _number(group / used)
    if most is None or taken is None:
        return None
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
    files = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return MemoryLimit(most, max(most - max(taken - files, 0), 0))


def _quota(quota: str = "", period: str = "") -> float | None:
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # "max", "-1", or an unknown form
    return int(quota) / int(period)


def _groups(controller: str) -> Iterator[Path]:
    """Folders of this process's group and of all groups around it.

    controller: the name of a controller in version 1; "" means version 2. If a system uses both
    versions, version 2 has its own folder.
    """
    roots = [_ROOT / controller] if controller else [_ROOT, _ROOT / "unified"]
    path = PurePosixPath(_own_group(controller))
    parts = [part for part in path.parts if part not in ("/", "..")]
    for root in roots:
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth])


def _own_group(controller: str) -> str:
    for line in _text(_OWN_GROUPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
