"""Memory that running engines will need and have not touched yet.

The system counts memory as taken when it is first written to, and an engine's KV pages fill as it
is used. So each engine leaves a note in the user's cache, a JSON file (`Note`), and holds a lock
beside it as long as it lives. The system lets go of the lock when the process ends, however it
ends, also in another container. A note whose lock is free means nothing and is removed.

An engine needs `total` bytes. `left` of them were untouched at the moment when its process had
taken `base` bytes of memory. Memory that the process has taken since then counts as touched. While
an engine opens (`base` is null), or if its process is in another container, all of `left` counts as
untouched.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from mlc_llm.errors import CacheError
from mlc_llm.record import record
from mlc_llm.support.file_locks import file_lock, lock_if_free
from mlc_llm.support.files import cache_dir
from mlc_llm.support.processes import Process, machine, namespace, process_of

_FOLDER = "engines"
_TURN = "turn"
"""The lock for those who read or make notes."""
_MOST_NAMED = 3


class Note(TypedDict):
    """What the file of a promise holds. See the top of this file."""

    model: str
    total: int
    left: int
    base: int | None
    pid: int
    start: str
    """See `Process`."""
    namespace: str
    """The namespace of the process numbers; another container has another one."""
    machine: str
    """Names the machine, and its last start."""


@record()
class Promise:
    """The memory of one engine that runs."""

    model: str
    pid: int
    total: int
    """Bytes that it needs."""
    untouched: int
    """The part of them that the system still counts as free."""

    @property
    def is_own(self) -> bool:
        """True if the engine is one of this process."""
        return self.pid == os.getpid()

    def fresh(self) -> Promise:
        """The promise when nothing was touched."""
        return replace(self, untouched=self.total)

    def describe(self) -> str:
        return f"{self.untouched / 2**20:.0f} MB to {self.model} (process {self.pid})"


Promises = Mapping[str, Promise]
"""By the name of the note."""


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Within it, nobody else makes a promise: not between a look at the promises and a new one.

    If the cache cannot be written there are no notes, and nobody waits.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(CacheError):
            held.enter_context(file_lock(cache_dir(_FOLDER) / f"{_TURN}.lock"))
        yield


def standing() -> Promises:
    """The promises of all engines of this user on this machine, also of this process.

    Call it in a `turn`.
    """
    notes: dict[str, Note] = {}
    with contextlib.suppress(CacheError, OSError):
        for path in cache_dir(_FOLDER).glob("*.json"):
            note = _read(path)
            if note is not None:
                notes[path.stem] = note
    return _counted(notes)


def promise(model: str, total: int) -> PromiseHandle:
    """Note that an engine of this process needs `total` bytes, until `release` is called.

    Call it in a `turn`.
    """
    own = process_of(os.getpid())
    note: Note = {
        "model": model,
        "total": total,
        "left": total,
        "base": None,
        "pid": os.getpid(),
        "start": "" if own is None else own.start,
        "namespace": namespace(),
        "machine": machine(),
    }
    handle = PromiseHandle(note)
    with contextlib.suppress(CacheError, OSError):
        path = cache_dir(_FOLDER) / f"{os.urandom(8).hex()}.json"
        handle.hold(path, file_lock(path.with_suffix(".lock")))
        handle.write()
    return handle


def settle(handle: PromiseHandle, touched: int, before: Promises) -> None:
    """Note that the engine is open and has touched so many bytes of its promise.

    Other memory that this process took meanwhile belongs to none of its older promises: they have
    as much left as in `before`. Call it in a `turn`.
    """
    base = taken()
    handle.rebase(handle.note["total"] - touched, base)
    for name, other in list(_own.items()):
        if other is not handle and name in before:
            other.rebase(before[name].untouched, base)


def taken() -> int:
    """Bytes of this process' own memory; 0 if the system does not say."""
    own = process_of(os.getpid())
    return 0 if own is None else own.taken


def in_words(promises: Iterable[Promise]) -> str:
    """How much is promised to whom; empty if nothing is."""
    found = sorted((one for one in promises if one.untouched), key=lambda one: -one.untouched)
    named = [one.describe() for one in found[:_MOST_NAMED]]
    rest = sum(one.untouched for one in found[_MOST_NAMED:])
    if rest:
        named.append(f"{rest / 2**20:.0f} MB to {len(found) - _MOST_NAMED} other engines")
    return "" if not named else f"promised to others: {', '.join(named)}"


class PromiseHandle:
    """Ends a promise. A forked process has a copy, which ends nothing."""

    def __init__(self, note: Note) -> None:
        self.note = note
        self._pid = os.getpid()
        self._path: Path | None = None
        self._held = contextlib.ExitStack()

    def hold(self, path: Path, lock: AbstractContextManager[None]) -> None:
        """Take the place of the note, and the lock that says that it is true."""
        self._held.enter_context(lock)
        self._path = path
        _own[path.stem] = self

    def write(self) -> None:
        """Write the note. Call it in a `turn`, so that nobody reads meanwhile. Raises OSError."""
        if self._path is not None:
            self._path.write_text(json.dumps(self.note), encoding="utf-8")

    def rebase(self, left: int, base: int) -> None:
        """Note that `left` bytes are untouched, now that the process has taken `base` bytes."""
        self.note = {**self.note, "left": left, "base": base}
        with contextlib.suppress(OSError):
            self.write()

    def release(self) -> None:
        """End the promise. A second call changes nothing."""
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
"""The promises of this process, by the name of the note."""


def _read(path: Path) -> Note | None:
    """A note that is still true. A note whose lock is free is removed. Raises OSError."""
    lock = path.with_suffix(".lock")
    with lock_if_free(lock) as free:
        if free:
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            return None
    try:
        note = _note_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):  # it was released meanwhile
        return None
    return note if note["machine"] == machine() and not _is_gone(note) else None


def _note_of(values: dict[str, object]) -> Note:
    """Raises KeyError, TypeError for what is no note."""
    base = values["base"]
    return {
        "model": _text(values["model"]),
        "total": _number(values["total"]),
        "left": _number(values["left"]),
        "base": None if base is None else _number(base),
        "pid": _number(values["pid"]),
        "start": _text(values["start"]),
        "namespace": _text(values["namespace"]),
        "machine": _text(values["machine"]),
    }


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("should be a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("should be a whole number")
    return value


def _counted(notes: Mapping[str, Note]) -> dict[str, Promise]:
    """The promises of the notes. The memory that a process with several engines has taken counts as
    touched for one engine after the other."""
    touched: dict[tuple[str, int], int] = {}
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
        found[name] = Promise(note["model"], note["pid"], note["total"], left)
    return found


def _is_gone(note: Note) -> bool:
    """True if the process is known to have ended: then its child holds the lock."""
    can_see = note["namespace"] == namespace() and process_of(os.getpid()) is not None
    return can_see and _seen(note) is None


def _seen(note: Note) -> Process | None:
    """The process of a note; None if it cannot be seen from here, or has ended."""
    if note["namespace"] != namespace():
        return None
    found = process_of(note["pid"])
    return found if found is not None and found.start == note["start"] else None
