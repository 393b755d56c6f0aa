"""The hash of all bytes of a model file. The cache names things by it.

Reading a large file at each start would take seconds, so the cache keeps its hash. The kept hash is
used if all of this is the same as when the file was read:

* size, device, inode, time of modification and time of change. The system sets the time of change,
  and no program can set it back. So a file that was written or replaced has another one, even if
  its size and its time of modification are the same.
* samples of the content: the beginning, the end, and blocks at equal distances between them. They
  are for file systems that have no time of change (FAT, read-only images, Windows).

So two files with different bytes get different hashes. There is one exception: a file that was
changed in place, outside every sample, on a file system without times of change, with the same size
and times as before.
"""

from __future__ import annotations

import os
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mlc_llm.plain_file import open_plain
from mlc_llm.support.kept import keep, kept, key_of
from mlc_llm.support.progress import no_progress, progress

HEAD_BYTES = 1 << 16
BLOCK_BYTES = 4096
BLOCKS = 128
SETTLED_S = 2.0
"""If a file was changed less than this before it was read, its hash is not kept: it may change
again within the same tick of a coarse clock (2 s on FAT)."""
_SHOWN_BYTES = 1 << 29
"""For larger files, progress is shown."""
_PIECE = 1 << 20


class FileState(NamedTuple):
    """Facts about a file. At least one of them differs after a change of the file."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileState:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class Content(NamedTuple):
    """The hash of a file's bytes, and the state of the file when it had these bytes."""

    hash: str
    """Hexadecimal SHA-256."""
    state: FileState


def content_of(path: Path, model: str | None = None) -> Content:
    """The content of a file, from the cache or by reading the file. model: the name of the model
    that the file belongs to, for users; None: the file's. Raises OSError."""
    with open_plain(path) as file:
        state, key = _state_and_key(file)
        found = _known(path, key)
        if found is None:
            started = time.time()
            found = _hash(file, path.name, state.size)
            settled = started - state.changed_ns / 1e9 > SETTLED_S
            if settled and FileState.of(os.fstat(file.fileno())) == state:
                keep(_name(path), key, found.encode(), f"checksum of {model or path.name}")
    return Content(found, state)


def known_content(path: Path) -> Content | None:
    """The content of a file if the cache has its hash, else None. Takes milliseconds. Raises
    OSError."""
    with open_plain(path) as file:
        state, key = _state_and_key(file)
    found = _known(path, key)
    return None if found is None else Content(found, state)


def _known(path: Path, key: str) -> str | None:
    note = kept(_name(path), key)
    return None if note is None else bytes(note).decode()


def _name(path: Path) -> str:
    return f"content of {path.resolve()}"


def _state_and_key(file: BinaryIO) -> tuple[FileState, str]:
    state = FileState.of(os.fstat(file.fileno()))
    return state, key_of(*state, _samples(file, state.size))


def _samples(file: BinaryIO, size: int) -> str:
    found = sha256()
    places = [(0, HEAD_BYTES), (max(size - BLOCK_BYTES, 0), BLOCK_BYTES)]
    places += [(size * block // BLOCKS, BLOCK_BYTES) for block in range(BLOCKS)]
    for start, count in places:
        file.seek(start)
        found.update(file.read(count))
    return found.hexdigest()


def _hash(file: BinaryIO, name: str, size: int) -> str:
    file.seek(0)
    found, piece = sha256(), memoryview(bytearray(_PIECE))
    show = partial(progress, unit="bytes") if size > _SHOWN_BYTES else no_progress
    with show(f"reading {name}", size) as shown:
        while count := file.readinto(piece):  # type: ignore[attr-defined]
            found.update(piece[:count])
            shown.advance(count)
    return found.hexdigest()
