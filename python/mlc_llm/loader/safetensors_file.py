"""One safetensors file, mapped and checked; no tensor is copied.

Format: https://github.com/huggingface/safetensors. The library checks the header: its size, that
offsets follow each other and fill the file, that shapes fit them. What it lets pass is checked
here.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError, safe_open

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.plain_file import open_plain, reason
from mlc_llm.record import record

KINDS = {
    "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "I32": 4,
    "U32": 4, "I64": 8, "BOOL": 1,
}  # fmt: skip
"""Types of tensors that models use, with the bytes of a value."""
MAX_HEADER_BYTES = 100 << 20
"""As the library has it."""


@record()
class SafetensorsFile:
    """The tensors of one file, by name; `stat` is the file's state when it was opened."""

    path: Path
    tensors: Mapping[str, GGUFTensor]
    stat: os.stat_result

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Raises ModelNotFound, ModelFileError (broken), UnsupportedModel (a type of tensor)."""
        try:
            with open_plain(path) as file:
                stat = os.fstat(file.fileno())
                _check_with_library(path)
                buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelNotFound(f"{path}: no such file") from None
        except ModelFileError:  # a ValueError too
            raise
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: {reason(error)}") from None
        return cls(path, dict(_tensors(path, buffer)), stat)


def _check_with_library(path: Path) -> None:
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise ModelFileError(f"{path}: not a sound safetensors file ({error})") from None


def _tensors(path: Path, buffer: mmap.mmap) -> Iterator[tuple[str, GGUFTensor]]:
    """Every tensor, as bytes of the mapping."""
    size = int.from_bytes(buffer[:8], "little")
    if not 0 < size <= min(MAX_HEADER_BYTES, len(buffer) - 8):
        _fail(path, f"its header has {size} bytes")
    header = _header(path, bytes(buffer[8 : 8 + size]))
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, _tensor(path, name, entry, buffer, 8 + size)


def _header(path: Path, text: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            _fail(path, "a name stands twice in its header")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _fail(path, f"its header is not JSON ({error})")
    if not isinstance(header, dict):
        _fail(path, "its header is not a JSON object")
    return header


def _tensor(path: Path, name: str, entry: object, buffer: mmap.mmap, start: int) -> GGUFTensor:
    what = f"tensor {printable(name)}"
    if not isinstance(entry, dict):
        _fail(path, f"{what} is not described by an object")
    kind, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise UnsupportedModel(f"{path}: {what} has the type {kind}; supported are {known}")
    sizes, ends = _numbers(shape), _numbers(offsets)
    if sizes is None or ends is None or len(ends) != 2:
        _fail(path, f"{what} has no whole numbers as shape and offsets")
    first, behind = ends
    if behind - first != math.prod(sizes) * KINDS[kind] or start + behind > len(buffer):
        _fail(path, f"{what} of shape {list(sizes)} does not fit bytes {first} to {behind}")
    here = memoryview(buffer)[start + first : start + behind]
    return GGUFTensor(name, sizes, kind, here, path)


def _numbers(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers from 0 on; None for anything else."""
    if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
        return None
    return tuple(value)


def _fail(path: Path, words: str) -> NoReturn:
    raise ModelFileError(f"{path}: {words}")
