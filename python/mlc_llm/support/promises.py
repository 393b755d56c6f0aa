"""Memory that running engines will need and have not touched yet.

The system counts memory as taken when it is first written to, and an engine's KV pages fill as it
is used. So each engine of a user leaves a note in the cache: a JSON file {model, total, left, base,
pid, start, namespace, machine}, and beside it a lock that it holds as long as it lives. The system
lets go of the lock however the process ends, and whatever namespace its number is of: a note whose
lock is free means nothing and is removed.

Of `total` bytes that an engine needs, `left` were untouched when its process had taken `base` bytes
of memory; what the process has taken since was touched of these. Nothing is known to be touched
while an engine opens (`base` is null), or where the process is in another container.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlc_llm.errors import CacheError
from mlc_llm.support.files import cache_dir, file_lock, lock_if_free

_FOLDER = "engines"
_TURN = "turn"
"""The lock of whoever reads or makes notes."""
_MOST_NAMED = 3
_PROC = Path("/proc")


@dataclass(frozen=True)
class Promise:
    """Of one engine that runs."""

    model: str
    pid: int
    total: int
    """Bytes of all that it needs."""
    untouched: int
    """Of those, what the system still counts as free."""

    @property
    def is_own(self) -> bool:
        """Of an engine of this process."""
        return self.pid == os.getpid()

    def fresh(self) -> Promise:
        """As it was when nothing was touched."""
        return replace(self, untouched=self.total)

    def describe(self) -> str:
        return f"{self.untouched / 2**20:.0f} MB to {self.model} (process {self.pid})"


Promises = Mapping[str, Promise]
"""By the name of the note."""


@dataclass(frozen=True)
class Process:
    """What the system says of a process. `start` tells it from a later one of the same number."""

    start: str
    taken: int
    """Bytes of memory of its own."""


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Between looking at promises and making one, nobody else makes one. Where the cache cannot be
    written there are no notes, and so no turns."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(CacheError):
            held.enter_context(file_lock(cache_dir(_FOLDER) / f"{_TURN}.lock"))
        yield


def standing() -> Promises:
    """Promises of all engines of this user on this machine, those of this process included.

    To be called in a `turn`.
    """
    notes: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(CacheError, OSError):
        for path in cache_dir(_FOLDER).glob("*.json"):
            note = _read(path)
            if note is not None:
                notes[path.stem] = note
    return _counted(notes)


def promise(model: str, total: int) -> PromiseHandle:
    """Note that an engine of this process needs `total` bytes, until `release` is called.

    To be called in a `turn`.
    """
    own = _process(os.getpid())
    note = {
        "model": model,
        "total": total,
        "left": total,
        "base": None,
        "pid": os.getpid(),
        "start": "" if own is None else own.start,
        "namespace": _namespace(),
        "machine": _machine(),
    }
    handle = PromiseHandle(note)
    with contextlib.suppress(CacheError, OSError):
        path = cache_dir(_FOLDER) / f"{secrets.token_hex(8)}.json"
        handle.hold(path, file_lock(path.with_suffix(".lock")))
        handle.write()
    return handle


def settle(handle: PromiseHandle, touched: int, before: Promises) -> None:
    """The engine is open, and has touched so many bytes of its promise. What else this process took
    meanwhile is no part of its older promises: of those is left what there was `before`.

    To be called in a `turn`.
    """
    base = taken()
    handle.rebase(handle.note["total"] - touched, base)
    for name, other in list(_own.items()):
        if other is not handle and name in before:
            other.rebase(before[name].untouched, base)


def taken() -> int:
    """Bytes of memory that this process has of its own; 0 where the system does not say."""
    own = _process(os.getpid())
    return 0 if own is None else own.taken


def in_words(promises: Iterable[Promise]) -> str:
    """How much is promised to whom; empty where nothing is."""
    found = sorted((one for one in promises if one.untouched), key=lambda one: -one.untouched)
    named = [one.describe() for one in found[:_MOST_NAMED]]
    rest = sum(one.untouched for one in found[_MOST_NAMED:])
    if rest:
        named.append(f"{rest / 2**20:.0f} MB to {len(found) - _MOST_NAMED} other engines")
    return "" if not named else f"promised to others: {', '.join(named)}"


class PromiseHandle:
    """What ends a promise. A forked process has a copy, which ends nothing."""

    def __init__(self, note: dict[str, Any]) -> None:
        self.note = note
        self._pid = os.getpid()
        self._path: Path | None = None
        self._held = contextlib.ExitStack()

    def hold(self, path: Path, lock: AbstractContextManager[None]) -> None:
        """Where the note is, and what says that it is true."""
        self._held.enter_context(lock)
        self._path = path
        _own[path.stem] = self

    def write(self) -> None:
        """In a `turn`, so nobody reads meanwhile. It need not outlive a crash. Raises OSError."""
        if self._path is not None:
            self._path.write_text(json.dumps(self.note), encoding="utf-8")

    def rebase(self, left: int, base: int) -> None:
        """So much is untouched, now that the process has taken `base` bytes."""
        self.note = {**self.note, "left": left, "base": base}
        with contextlib.suppress(OSError):
            self.write()

    def release(self) -> None:
        """The engine is gone. To call it again changes nothing."""
        if self._path is None or self._pid != os.getpid():
            return
        path, self._path = self._path, None
        _own.pop(path.stem, None)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        self._held.close()
        with contextlib.suppress(OSError):
            path.with_suffix(".lock").unlink(missing_ok=True)


_own: dict[str, PromiseHandle] = {}
"""Those of this process, by the name of the note."""


def _read(path: Path) -> dict[str, Any] | None:
    """A note that is still true; one that is not is removed. Raises OSError."""
    lock = path.with_suffix(".lock")
    with lock_if_free(lock) as free:
        if free:
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            return None
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        sound = all(isinstance(note[name], int) for name in ("total", "left", "pid"))
        sound = sound and isinstance(note["base"], int | None)
        return note if sound and note["machine"] == _machine() and not _is_gone(note) else None
    except (OSError, ValueError, KeyError, TypeError):  # it was released meanwhile
        return None


def _counted(notes: Mapping[str, dict[str, Any]]) -> dict[str, Promise]:
    """A process with several engines has touched what it took, one engine after the other."""
    touched: dict[tuple[Any, ...], int] = {}
    found = {}
    for name, note in notes.items():
        process, who = _seen(note), (note["namespace"], note["pid"])
        if process is None or note["base"] is None:
            done = 0
        else:
            grown = touched.setdefault(who, max(process.taken - note["base"], 0))
            done = min(grown, note["left"])
            touched[who] = grown - done
        left = note["left"] - done
        found[name] = Promise(str(note["model"]), note["pid"], note["total"], left)
    return found


def _is_gone(note: dict[str, Any]) -> bool:
    """The process is known to have ended; a child that it left behind holds the lock."""
    can_see = note["namespace"] == _namespace() and _process(os.getpid()) is not None
    return can_see and _seen(note) is None


def _seen(note: dict[str, Any]) -> Process | None:
    if note.get("namespace") != _namespace():
        return None
    found = _process(note.get("pid", 0))
    return found if found is not None and found.start == note.get("start") else None


def _process(pid: int) -> Process | None:
    """None where the system does not say. Source: proc(5)."""
    try:
        # The name of the program, in brackets, may hold anything.
        start = (_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        lines = (_PROC / f"{pid}/status").read_text(errors="replace").splitlines()
    except (OSError, IndexError):
        return None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    own = [fields[name][0] for name in ("RssAnon", "VmSwap") if fields.get(name)]
    return Process(start, 1024 * sum(int(one) for one in own)) if own else None


def _namespace() -> str:
    """Of the numbers of processes."""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _machine() -> str:
    """This one since it was started: a home folder may be shared by several."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
