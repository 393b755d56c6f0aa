"""The parameters in MLC LLM's folder, mapped and checked; nothing is copied.

Format: `tensor-cache.json` (formerly `ndarray-cache.json`) beside `params_shard_N.bin`; see
`conversion/shards.py`. Nothing is read but what stands in the folder itself.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.huggingface import state_of
from mlc_llm.plain_file import open_plain, reason
from mlc_llm.record import record

INDEXES = ("tensor-cache.json", "ndarray-cache.json")
MAX_JSON_BYTES = 64 << 20
MAX_SHARDS = 4096
MAX_AXES = 4
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "uint32": 4}
_PIECE = 1 << 20
_HALVES = "f32-to-bf16"
"""A float32 parameter of which the file has only the upper halves."""


@record()
class MLCParam:
    """A parameter. data: uint32, or the bits of numbers as uint8; shape as in the index."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Of the bytes in the file."""
    data: npt.NDArray[np.uint8]
    mapping: mmap.mmap

    def give_back(self) -> None:
        """Let the system take back the memory of the pages that were read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)


@record()
class MLCShards:
    """All parameters, by name; opened: the index and the shards in order, as they were when
    opened."""

    path: Path
    params: Mapping[str, MLCParam]
    opened: tuple[tuple[Path, os.stat_result], ...]
    sums: Mapping[Path, str]
    """The MD5 sum of each shard, in hexadecimal, if the index says it."""

    @classmethod
    def open(cls, folder: Path) -> MLCShards:
        """Raises ModelNotFound, ModelFileError, UnsupportedModel (a type of numbers)."""
        index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
        if index is None:
            raise ModelNotFound(f"{folder}: there is no {INDEXES[0]}")
        opened = {index: state_of(index)}
        shards = read_json_object(index, MAX_JSON_BYTES).get("records")
        if not isinstance(shards, list) or not 0 < len(shards) <= MAX_SHARDS:
            _fail(index, f"records should be a list of 1 to {MAX_SHARDS} shards")
        params: dict[str, MLCParam] = {}
        sums: dict[Path, str] = {}
        for i, shard in enumerate(shards):
            path, stat, mapping = _mapped(index, i, shard)
            if path in opened:
                _fail(index, f"records[{i}]: {path.name} is named twice")
            opened[path] = stat
            if shard.get("md5sum") is not None:
                sums[path] = str(shard["md5sum"])
            for param in _params(index, i, shard, mapping):
                if param.name in params:
                    _fail(index, f"{printable(param.name)} is there twice")
                params[param.name] = param
        return cls(folder, params, tuple(opened.items()), sums)

    def check_sums(self) -> None:
        """Read all shards. Raises ModelFileError for one with another MD5 sum."""
        for path, expected in self.sums.items():
            if _md5(path) != expected:
                raise ModelFileError(f"{path}: damaged, its MD5 sum is not {expected[:40]}")


def _mapped(index: Path, i: int, shard: object) -> tuple[Path, os.stat_result, mmap.mmap]:
    """A shard's file."""
    name = shard.get("dataPath") if isinstance(shard, dict) else None
    size = shard.get("nbytes") if isinstance(shard, dict) else None
    if not isinstance(name, str) or not _is_name(name):
        _fail(index, f"records[{i}].dataPath = {str(name)[:60]!r} should be a file in this folder")
    path = index.parent / name
    try:
        with open_plain(path) as file:
            stat = os.fstat(file.fileno())
            if stat.st_size != size:
                _fail(index, f"{name} has {stat.st_size} bytes, not {size!r:.20}: truncated?")
            return path, stat, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except ModelFileError:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None


def _params(
    index: Path, i: int, shard: dict[str, object], mapping: mmap.mmap
) -> Iterator[MLCParam]:
    records = shard.get("records")
    if not isinstance(records, list):
        _fail(index, f"records[{i}].records should be a list of parameters")
    for one in records:
        yield _param(index, one if isinstance(one, dict) else {}, mapping)


def _param(index: Path, one: dict[str, object], mapping: mmap.mmap) -> MLCParam:
    name, dtype, coded = (one.get(key) for key in ("name", "dtype", "format"))
    if not isinstance(name, str):
        _fail(index, "a parameter has no name")
    what = printable(name)
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise UnsupportedModel(
            f"{index}: {what} is {dtype!r:.40}; supported are {', '.join(SIZES)}"
        )
    if coded == _HALVES and dtype == "float32":
        dtype = "bfloat16"
    elif coded not in ("raw", _HALVES):
        raise UnsupportedModel(f"{index}: {what} has the format {str(coded)[:40]!r}")
    shape = one.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_AXES or not all(map(_is_size, shape)):
        _fail(index, f"the shape of {what} should be up to {MAX_AXES} whole numbers")
    start, size = one.get("byteOffset"), math.prod(shape) * SIZES[dtype]
    if size != one.get("nbytes") or not _is_size(start):
        _fail(index, f"{what} of shape {shape} should have {size} bytes")
    assert isinstance(start, int)
    if start + size > len(mapping):
        _fail(index, f"{what} lies beyond the end of its shard")
    data: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8, size, start)
    return MLCParam(name, tuple(shape), dtype, data, mapping)


def _md5(path: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    return found.hexdigest()


def _is_name(name: str) -> bool:
    """Of a file in the folder; one that an error of one line can show."""
    is_plain = name.isprintable() and "\\" not in name
    return is_plain and Path(name).name == name and name not in ("", "..")


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _fail(path: Path, words: str) -> NoReturn:
    raise ModelFileError(f"{path}: {words}")
