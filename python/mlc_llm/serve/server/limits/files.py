"""Each connection is an open file of the process, and the system bounds those."""

from __future__ import annotations

import logging

try:
    import resource
except ImportError:  # not a POSIX system: there, nothing is known of a bound
    resource = None  # type: ignore[assignment]

OTHER_FILES = 64
"""Of the engines, of the log, and of connections to other servers."""

_log = logging.getLogger(__name__)


def connections_within_files(wanted: int) -> int:
    """How many connections there can be at a time: `wanted`, or fewer where the system allows no
    more files. As many may be accepted before those beyond the limit are closed, so they count
    twice. The limit that a process may change itself is raised as far as that is needed.
    """
    if resource is None:
        return wanted
    needed = 2 * wanted + OTHER_FILES
    soft, hard = (_number(one) for one in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < needed and soft < hard:
        soft = _raised(int(min(needed, hard)), int(soft))
    if soft >= needed:
        return wanted
    found = max(1, (int(soft) - OTHER_FILES) // 2)
    _log.warning(
        "the system lets this process open %d files: there may be %d connections at a time, "
        "not %d; `ulimit -n %d` allows them",
        soft, found, wanted, needed,
    )  # fmt: skip
    return found


def _number(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _raised(target: int, soft: int) -> int:
    """The limit afterwards."""
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (target, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    except (OSError, ValueError):  # a system may bound them below what it says
        return soft
    return target
