"""What the system says of processes and of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from mlc_llm.record import record

_PROC = Path("/proc")


@record()
class Process:
    """What the system says of a process."""

    start: str
    """The time when it started: a later process of the same number has another one."""
    taken: int
    """Bytes of its own memory."""


def process_of(pid: int) -> Process | None:
    """A process by its number; None if the system does not say. Source: proc(5)."""
    try:
        # The program's name stands in brackets and may hold anything.
        start = (_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        lines = (_PROC / f"{pid}/status").read_text(errors="replace").splitlines()
    except (OSError, IndexError):
        return None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    own = [fields[name][0] for name in ("RssAnon", "VmSwap") if fields.get(name)]
    return Process(start, 1024 * sum(int(one) for one in own)) if own else None


def namespace() -> str:
    """Names the namespace of process numbers; empty if the system does not say."""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def machine() -> str:
    """Names this machine since its last start; several machines may share a home folder."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
