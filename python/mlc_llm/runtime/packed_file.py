"""The file of packed parameters, read into memory in one go.

No NumPy here: a command begins to read before anything heavy is imported (`read_ahead.py`).
"""

from __future__ import annotations

import json
import mmap
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.support.huge_memory import huge_memory


class BrokenParams(Exception):
    """The packed weights are missing, damaged or of another layout; packing again mends that."""


PIECE = 1 << 26
"""Bytes read at once. After each piece a thread that reads waits for Python's lock, up to 5 ms; the
checksum takes longer than the memory does, so nothing is lost outside the processor's cache."""


class Packed(NamedTuple):
    """A folder's parameters as they lie in memory, which agrees with its checksum."""

    folder: Path
    memory: mmap.mmap
    entries: list[dict[str, Any]]
    """What stands where, as `compiler/weights.py` says."""
    size: int


def read_packed(folder: Path) -> Packed:
    """Raises BrokenParams, MemoryError.

    The file is copied, not mapped: memory of our own can have huge pages. The checksum is made on
    the way, for a flipped bit would not be seen in what the model says.
    """
    try:
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        path, size, entries = folder / PARAMS_FILE, index["size"], index["tensors"]
        if path.stat().st_size != size:
            raise BrokenParams(f"{path} has {path.stat().st_size} bytes, not {size}")
        memory = huge_memory(size)
        if _read(path, memory, size) != index["crc32"]:
            raise BrokenParams(f"{path} does not match its recorded checksum")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{folder}: {error}") from error
    return Packed(folder, memory, entries, size)


def _read(path: Path, memory: mmap.mmap, size: int) -> int:
    """Fills the memory with a file's bytes; their checksum."""
    crc32 = 0
    with path.open("rb", buffering=0) as file, memoryview(memory) as whole:
        for start in range(0, size, PIECE):
            with whole[start : min(start + PIECE, size)] as piece:
                done = 0
                while done < len(piece):
                    count = file.readinto(piece[done:])
                    if not count:
                        raise BrokenParams(f"{path} ended after {start + done} of {size} bytes")
                    done += count
                crc32 = zlib.crc32(piece, crc32)
    return crc32
