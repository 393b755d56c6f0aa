"""Opens one GGUF file, or joins the parts `NAME-00001-of-0000N.gguf` of a split one.

The first part has the metadata, and every part has some of the tensors. The keys `split.no`,
`split.count` and `split.tensors.count` say which parts and how many tensors there must be.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.gguf_cursor import MAX_KEYS, MAX_TENSORS, Cursor, printable
from mlc_llm.loader.gguf_metadata import MIN_ENTRY_BYTES, Metadata, read_metadata
from mlc_llm.loader.gguf_tensors import MIN_TENSOR_BYTES, GGUFTensor, read_tensors
from mlc_llm.record import record

_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MAX_PARTS = 1_024


@record()
class Part:
    """The checked contents of one file."""

    path: Path
    metadata: Metadata
    tensors: dict[str, GGUFTensor]
    buffer: mmap.mmap
    """The mapping of the first file."""
    header_bytes: int
    """Size of metadata and tensor table in the first file."""
    opened: tuple[tuple[Path, os.stat_result], ...]
    """The mapped files, each with its state when it was opened."""

    def split_number(self, key: str) -> int:
        """The whole number under a `split.` key. Raises ModelFileError if it is missing or of
        another type."""
        value = self.metadata.get(key)
        if type(value) is not int:
            raise ModelFileError(f"{self.path}: {key} is missing or not a whole number")
        return value


def open_part(path: Path, list_ends: Mapping[int, int] = {}) -> Part:
    """Read and check the header of one file: a whole model, or any part of one.

    list_ends: `Metadata.list_ends` from an earlier opening of this file.
    """
    cursor = Cursor.open(path)
    cursor.list_ends.update(list_ends)
    _check_magic(cursor)
    tensors = cursor.count("number of tensors", MAX_TENSORS, MIN_TENSOR_BYTES)
    keys = cursor.count("number of metadata keys", MAX_KEYS, MIN_ENTRY_BYTES)
    metadata = read_metadata(cursor, keys)
    table = read_tensors(cursor, tensors, metadata)
    assert cursor.stat is not None
    return Part(path, metadata, table, cursor.buffer, cursor.pos, ((path, cursor.stat),))


def _check_magic(cursor: Cursor) -> None:
    if cursor.buffer[cursor.take(4, "magic") : 4] != b"GGUF":
        cursor.fail("not a GGUF file (it does not begin with the letters GGUF)")
    version = cursor.u32("version")
    if version in (0x01000000, 0x02000000, 0x03000000):
        cursor.fail("a big-endian GGUF file; only little-endian files are supported")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported; versions 2 and 3 are")


def open_parts(path: Path, list_ends: Mapping[int, int] = {}) -> Part:
    """Open a model by its only or its first file, and join its other parts. A merged file has a
    count of 0."""
    first = open_part(path, list_ends)
    if "split.count" not in first.metadata or first.split_number("split.count") in (0, 1):
        return first
    return _join(first, [open_part(p) for p in _other_parts(first)])


def _other_parts(first: Part) -> list[Path]:
    """Paths of the other parts. Raises ModelFileError if one is missing, or if `first` is not the
    first part."""
    count = first.split_number("split.count")
    if not 1 <= count <= _MAX_PARTS:
        raise ModelFileError(f"{first.path}: split.count is {count}; 1 to {_MAX_PARTS} are allowed")
    name = _PART_NAME.fullmatch(first.path.name)
    if name is None or int(name[3]) != count:
        raise ModelFileError(
            f"{first.path}: one of {count} parts must be named like NAME-00001-of-{count:05d}.gguf"
        )
    paths = [
        first.path.with_name(f"{name[1]}-{n:05d}-of-{name[3]}.gguf") for n in range(1, count + 1)
    ]
    if int(name[2]) != 1:
        raise ModelFileError(f"{first.path}: part {name[2]} of a model; open {paths[0].name}")
    for other in paths[1:]:
        if not other.is_file():
            raise ModelFileError(f"{first.path}: its part {other.name} is missing beside it")
    return paths[1:]


def _join(first: Part, others: list[Part]) -> Part:
    tensors: dict[str, GGUFTensor] = {}
    for number, part in enumerate([first, *others]):
        _check_number(part, number, first.split_number("split.count"))
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise ModelFileError(f"{part.path}: tensor {printable(min(twice))} is in two parts")
        tensors |= part.tensors
    expected = first.split_number("split.tensors.count")
    if len(tensors) != expected:
        raise ModelFileError(
            f"{first.path}: split.tensors.count is {expected}, the parts hold {len(tensors)}"
        )
    opened = tuple(one for part in (first, *others) for one in part.opened)
    return replace(first, tensors=tensors, opened=opened)


def _check_number(part: Part, number: int, count: int) -> None:
    for key, expected in (("split.no", number), ("split.count", count)):
        if part.split_number(key) != expected:
            raise ModelFileError(
                f"{part.path}: {key} is {part.split_number(key)}, it should be {expected}"
            )
