"""Downloads files of a repository: several pieces at a time, resumed, and checked by their hashes.

A file that is not complete lies in the folder `.parts`, under a name made of its hash, with all the
room that it needs. Beside it, a JSON list says how many bytes of each piece are there. So the next
try goes on where this one ended, whatever has ended it. A file that an older version of the
repository has too is not downloaded again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple

from mlc_llm.support.files import cache_errors, check_room
from mlc_llm.support.hub import HubError, Listing, RemoteFile, file_bytes
from mlc_llm.support.hub_address import PARTS
from mlc_llm.support.progress import ProgressFactory, progress
from mlc_llm.support.trust import make_folder

PIECE = 64 << 20
"""Bytes that one request asks for."""
CONNECTIONS = 4
TRIES = 3
"""Requests in a row that may bring nothing."""
WAIT_S = 1.0
"""Before the second try; twice as long before the third."""
_SAVED_S = 1.0


class Places(NamedTuple):
    """Folders of a repository. A lock keeps other processes away from them."""

    repository: Path
    """Where `.parts` lies."""
    files: Path
    """Where complete files go."""
    older: Sequence[Path]
    """Where other versions of the files may be."""


class _Part:
    """A file while it arrives."""

    def __init__(self, places: Places, file: RemoteFile) -> None:
        self.file = file
        self.place = places.files / file.name
        self.path = places.repository / PARTS / _key(file)
        self._state = self.path.with_suffix(".json")
        self._saved = 0.0
        count = -(-file.size // PIECE)
        self.lengths = [min(PIECE, file.size - i * PIECE) for i in range(count)]
        self.done = self._known() or [0] * count
        self.open_pieces = sum(a < b for a, b in zip(self.done, self.lengths, strict=True))

    def _known(self) -> list[int] | None:
        """What the list of an earlier try says; None if it does not fit."""
        try:
            done = json.loads(self._state.read_text("utf-8"))
            fits = len(done) == len(self.lengths) and self.path.stat().st_size == self.file.size
            fits &= all(0 <= one <= most for one, most in zip(done, self.lengths, strict=True))
        except (OSError, ValueError, TypeError):
            return None
        return list(done) if fits else None

    def begin(self) -> None:
        """Make the file, with all its room."""
        make_folder(self.path.parent)
        with self.path.open("ab") as made:
            made.truncate(self.file.size)

    def drop_if_empty(self) -> None:
        """Remove the file if none of its bytes has arrived."""
        if not any(self.done):
            self.path.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)

    def save(self, *, now: bool = False) -> None:
        """Write the list, at most once in _SAVED_S unless `now`."""
        if now or time.monotonic() - self._saved >= _SAVED_S:
            self._saved = time.monotonic()
            temporary = self._state.with_suffix(".new")
            temporary.write_text(json.dumps(self.done), encoding="utf-8")
            temporary.replace(self._state)

    def finish(self) -> None:
        """Check the whole file and put it into its place. Raises HubError and removes it if its
        hash is another one."""
        found = _hash(self.path, self.file)
        self._state.unlink(missing_ok=True)
        if found != self.file.hash:
            self.path.unlink()
            raise HubError(
                f"{self.file.name} arrived with the hash {found}, expected {self.file.hash}; it "
                "was removed"
            )
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())
        make_folder(self.place.parent)
        self.path.replace(self.place)


class _Piece(NamedTuple):
    part: _Part
    at: int


class _Download:
    """The work of all connections."""

    def __init__(self, listing: Listing, parts: Sequence[_Part], advance: Callable[[float], None]):
        self._listing = listing
        self._advance = advance
        self._lock = Lock()
        self._stop = Event()
        self._waiting = deque(
            _Piece(part, i)
            for part in parts
            for i, most in enumerate(part.lengths)
            if part.done[i] < most
        )

    def run(self, connections: int) -> None:
        """Return when every piece is there. Raises HubError, OSError."""
        with ThreadPoolExecutor(connections, "hub-download") as pool:
            try:
                workers: list[Future[None]] = [pool.submit(self._work) for _ in range(connections)]
                for one in wait(workers, return_when=FIRST_EXCEPTION).done:
                    one.result()
            finally:
                self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                piece = self._waiting.popleft()
            except IndexError:
                return
            with cache_errors(piece.part.place):
                self._fill(piece)

    def _fill(self, piece: _Piece) -> None:
        """Get a piece. Tries that bring nothing are counted; one that brings something is not."""
        tries = 0
        while not self._stop.is_set():
            before = piece.part.done[piece.at]
            try:
                self._receive(piece)
                self._end(piece)
                return
            except HubError as error:
                tries = 1 if piece.part.done[piece.at] > before else tries + 1
                if not error.passing or tries >= TRIES:
                    raise
                self._stop.wait(WAIT_S * tries)

    def _receive(self, piece: _Piece) -> None:
        part, index = piece
        first = index * PIECE
        start, end = first + part.done[index], first + part.lengths[index]
        try:
            with part.path.open("r+b", buffering=0) as target:
                target.seek(start)
                for data in file_bytes(self._listing, part.file, start, end):
                    if self._stop.is_set():
                        return
                    _write_all(target.write, data)
                    with self._lock:
                        part.done[index] += len(data)
                        part.save()
                        self._advance(len(data))
        finally:
            with self._lock:
                part.save(now=True)

    def _end(self, piece: _Piece) -> None:
        with self._lock:
            complete = piece.part.done[piece.at] == piece.part.lengths[piece.at]
            piece.part.open_pieces -= complete
            last = complete and piece.part.open_pieces == 0
        if last:
            piece.part.finish()


def fetch_files(
    listing: Listing, names: Sequence[str], places: Places, show: ProgressFactory | None = None
) -> None:
    """Put the named files into `places.files`. Those that are there already stay, and those of
    older versions are taken from there. The caller holds a lock on the folders.

    Raises HubError, and CacheError if the disk is full or cannot be written.
    """
    show = show or partial(progress, unit="bytes")
    with cache_errors(places.repository):
        wanted = [listing.files[name] for name in names]
        parts = [_Part(places, one) for one in wanted if not _has(places, one)]
        if parts:
            _fetch(listing, parts, places.repository, show)
        _drop_parts(places.repository, {_key(one) for one in listing.files.values()})


def _has(places: Places, file: RemoteFile) -> bool:
    """Whether the file is there, or could be taken from an older version."""
    goal = places.files / file.name
    if _is_there(goal, file):
        return True
    others = (folder / file.name for folder in places.older)
    found = next((one for one in others if _is_there(one, file)), None)
    if found is None:
        return False
    make_folder(goal.parent)
    goal.unlink(missing_ok=True)
    try:
        os.link(found.resolve(), goal)
    except OSError:  # some file systems have no links
        shutil.copyfile(found, goal)
    return True


def _fetch(listing: Listing, parts: list[_Part], folder: Path, show: ProgressFactory) -> None:
    parts.sort(key=lambda one: one.file.size)  # a wrong setting is seen before the weights come
    total = sum(part.file.size for part in parts)
    there = sum(sum(part.done) for part in parts)
    check_room(folder, total - there, f"download {listing.repository}")
    try:
        with show(f"downloading {listing.repository}", total) as shown:
            shown.advance(there)
            for part in parts:
                part.begin()
                if part.open_pieces == 0:
                    part.finish()
            pieces = sum(part.open_pieces for part in parts)
            if pieces:
                _Download(listing, parts, shown.advance).run(min(CONNECTIONS, pieces))
    except BaseException:
        for part in parts:
            part.drop_if_empty()
        raise


def _is_there(path: Path, file: RemoteFile) -> bool:
    try:
        return path.stat().st_size == file.size and _hash(path, file) == file.hash
    except OSError:
        return False


def _key(file: RemoteFile) -> str:
    """The name of a file's part. Another version of the file has another one."""
    return hashlib.sha256(f"{file.hash} {file.name}".encode()).hexdigest()


def _hash(path: Path, file: RemoteFile) -> str:
    """The hash of a file's bytes, of the kind that the server states."""
    if len(file.hash) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as source:
        while data := source.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _write_all(write: Callable[[bytes], int | None], data: bytes) -> None:
    while data:
        data = data[write(data) or 0 :]


def _drop_parts(folder: Path, keys: set[str]) -> None:
    """Remove parts of files that the repository no longer has, and the folder if it is empty."""
    with suppress(OSError):
        for path in (folder / PARTS).iterdir():
            if path.name.partition(".")[0] not in keys:
                path.unlink()
        (folder / PARTS).rmdir()
