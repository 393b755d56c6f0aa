"""Small files of the cache that save work the next time, each for one state of what it is about.

A file is its key (32 letters), the CRC-32 of the rest (uint32, little-endian), and the rest. One
that has another key, or is damaged, is as good as none; a new one replaces it all at once.
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


def key_of(*parts: object) -> str:
    """A key for what is told apart by these plain values."""
    return sha256(repr(parts).encode()).hexdigest()[:_KEY_BYTES]


def kept(name: str, key: str) -> memoryview | None:
    """What was kept under this name and key, mapped; None if there is nothing sound."""
    try:
        with _path(name).open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, CacheError):  # an empty file cannot be mapped
        return None
    start = _KEY_BYTES + 4
    sound = len(data) >= start and data[:_KEY_BYTES] == key.encode()
    checksum = int.from_bytes(data[_KEY_BYTES:start], "little")
    return data[start:] if sound and crc32(data[start:]) == checksum else None


def keep(name: str, key: str, data: bytes) -> None:
    """Keep it, if the cache can be written; what was not read for two months goes."""
    with suppress(CacheError):
        path = _path(name)
        write_file(path, key.encode() + crc32(data).to_bytes(4, "little") + data)
        with suppress(OSError):  # another process may be at the same
            for other in path.parent.iterdir():
                if time.time() - max(other.stat().st_atime, other.stat().st_mtime) > UNUSED_S:
                    other.unlink()


def _path(name: str) -> Path:
    return cache_root() / _FOLDER / key_of(name)
