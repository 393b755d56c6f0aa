"""Small files of the cache that save work later. Each holds for one state of a model file.

A file consists of a key (32 letters), the CRC-32 of the rest (uint32, little-endian), and the rest:
the length (uint16) of a description, the description, and the data. A file that has another key or
is damaged is ignored. A new file replaces an old one at once.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from mlc_llm.errors import CacheError
from mlc_llm.support.files import cache_root, write_file

UNUSED_S = 60 * 24 * 3600
_FOLDER = "kept"
_KEY_BYTES = 32
_HEAD_BYTES = _KEY_BYTES + 4
_MOST_WORDS = 1000


def key_of(*parts: object) -> str:
    """A key from plain values. Other values give another key."""
    return sha256(repr(parts).encode()).hexdigest()[:_KEY_BYTES]


def kept(name: str, key: str) -> memoryview | None:
    """The data kept under this name and key, memory-mapped; None if there is no valid file."""
    try:
        with _path(name).open("rb") as file:
            note = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, CacheError):  # an empty file cannot be mapped
        return None
    rest = note[_HEAD_BYTES:]
    sound = note[:_KEY_BYTES] == key.encode() and len(rest) >= 2
    checksum = int.from_bytes(note[_KEY_BYTES:_HEAD_BYTES], "little")
    return rest[_data_at(rest) :] if sound and crc32(rest) == checksum else None


def keep(name: str, key: str, data: bytes, about: str) -> None:
    """Keep data, if the cache can be written. Files that were not read for two months are removed.

    about: a description for users, "KIND of MODEL".
    """
    words = about.encode("utf-8", "replace")[:_MOST_WORDS]
    rest = len(words).to_bytes(2, "little") + words + data
    with suppress(CacheError):
        path = _path(name)
        write_file(path, key.encode() + crc32(rest).to_bytes(4, "little") + rest)
        with suppress(OSError):  # another process may remove the same files
            for other in path.parent.iterdir():
                if time.time() - last_use(other) > UNUSED_S:
                    other.unlink()


def about(note: Path) -> str | None:
    """The description of a kept file; None if it has none."""
    try:
        with note.open("rb") as file:
            start = file.read(_HEAD_BYTES + 2 + _MOST_WORDS)[_HEAD_BYTES:]
        return start[2 : _data_at(start)].decode() or None
    except (OSError, ValueError):
        return None


def last_use(note: Path) -> float:
    """When a kept file was last read or written, in seconds since 1970. Raises OSError."""
    stat = note.stat()
    return max(stat.st_atime, stat.st_mtime)


def _data_at(rest: memoryview | bytes) -> int:
    return 2 + int.from_bytes(rest[:2], "little")


def _path(name: str) -> Path:
    return cache_root() / _FOLDER / key_of(name)
