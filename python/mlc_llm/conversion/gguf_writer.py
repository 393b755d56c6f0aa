"""Writes a GGUF file whose tensors are made one after the other.

Format: the GGUF specification (ggml, docs/gguf.md), "File structure".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.gguf_entries import string_bytes
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.loader.gguf_tensors import KINDS

ALIGNMENT = 32
_SIZES = {kind: (number, block, size) for number, (kind, block, size) in KINDS.items()}


class NewTensor(NamedTuple):
    """A tensor of the new file. shape: rows first."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def nbytes(self) -> int:
        _, block, size = _SIZES[self.kind]
        return math.prod(self.shape) // block * size


def write_gguf(
    path: Path,
    metadata: Mapping[str, RawEntry],
    tensors: list[NewTensor],
    pieces: Iterable[tuple[NewTensor, Iterator[npt.NDArray[np.uint8]]]],
) -> None:
    """Write a file. pieces: the bytes of each tensor, in the order of `tensors`. Raises OSError."""
    with path.open("wb") as file:
        head = _header(metadata, tensors)
        file.write(head.ljust(_aligned(len(head)), b"\0"))
        for tensor, parts in pieces:
            written = sum(file.write(part.data) for part in parts)
            assert written == tensor.nbytes, f"{tensor}: {written} bytes"
            file.write(b"\0" * (_aligned(written) - written))


def header_bytes(metadata: Mapping[str, RawEntry], tensors: list[NewTensor]) -> int:
    """Bytes before the first tensor."""
    return _aligned(len(_header(metadata, tensors)))


def _header(metadata: Mapping[str, RawEntry], tensors: list[NewTensor]) -> bytes:
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    for key, entry in metadata.items():
        parts += [string_bytes(key), struct.pack("<I", entry.type), entry.value]
    offset = 0
    for one in tensors:
        sizes = one.shape[::-1]
        parts += [string_bytes(one.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(struct.pack("<IQ", _SIZES[one.kind][0], offset))
        offset += _aligned(one.nbytes)
    return b"".join(parts)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
