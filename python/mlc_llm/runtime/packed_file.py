"""Reads the file of packed weights into memory.

This file imports no NumPy: a command begins to read before it imports anything large
(`read_ahead.py`).
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypedDict

from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.support.huge_memory import huge_memory


class BrokenParams(Exception):
    """The packed weights are missing, damaged or of another layout; packing again mends that."""


PIECE = 1 << 26
"""Bytes that are read at once. After each piece the thread waits for Python's lock, up to 5 ms, so
pieces are large. They need not stay in the processor's cache: to make their checksum takes longer
than to read them again from memory."""


class Entry(TypedDict):
    """Where a tensor stands in the file, as `compiler/weights.py` writes it; nothing is checked."""

    name: str
    shape: list[int]
    dtype: str
    offset: int


class Packed(NamedTuple):
    """The packed weights of a folder in memory. They agree with their checksum."""

    folder: Path
    memory: mmap.mmap
    entries: list[Entry]
    size: int
    """In bytes; the memory may be larger."""


ReadWeights = Callable[[Path], Packed]
"""Gives the packed weights of a folder; raises what `read_packed` raises."""


def read_packed(folder: Path) -> Packed:
    """Read the packed weights of a folder. Raises BrokenParams, MemoryError.

    The file is copied, not mapped: memory of our own can have huge pages. The checksum is compared,
    because nobody would see a flipped bit in the model's answers.
    """
    return _packed(folder, _copied)


def map_packed(folder: Path) -> Packed:
    """As `read_packed`, but the file is mapped: for weights that are used for a short time.

    Nothing is cleared and nothing is copied, so they are there much sooner. Compiled code reads
    them a little slower, because a page is small.
    """
    return _packed(folder, _mapped)


def _packed(folder: Path, load: Callable[[Path, int], tuple[mmap.mmap, int]]) -> Packed:
    """load: gives the memory of a file of this size, and its checksum."""
    try:
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        path, size, entries = folder / PARAMS_FILE, index["size"], index["tensors"]
        if path.stat().st_size != size:
            raise BrokenParams(f"{path} has {path.stat().st_size} bytes, not {size}")
        memory, crc32 = load(path, size)
        if crc32 != index["crc32"]:
            raise BrokenParams(f"{path} does not match its recorded checksum")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{folder}: {error}") from error
    return Packed(folder, memory, entries, size)


def _mapped(path: Path, size: int) -> tuple[mmap.mmap, int]:
    with path.open("rb") as file:
        # Tensors are made over memory that can be written; nothing would come into the file.
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    return memory, zlib.crc32(memory)


def _copied(path: Path, size: int) -> tuple[mmap.mmap, int]:
    memory = huge_memory(size)
    return memory, _read(path, memory, size)


def _read(path: Path, memory: mmap.mmap, size: int) -> int:
    """Fill the memory with a file's bytes; returns their checksum."""
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
