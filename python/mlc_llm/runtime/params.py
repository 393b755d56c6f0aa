"""Packed parameters, read from their file in one go."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.model_lib import INDEX_FILE, PARAMS_ALIGNMENT, PARAMS_FILE, ROPE_PARAM, ParamInfo
from mlc_llm.runtime.memory import zeroed

Array = npt.NDArray[Any]


class BrokenParams(Exception):
    """The packed weights are missing, damaged or of another layout; packing again mends that."""


PIECE = 1 << 26
"""Bytes read at once. After each piece a thread that reads waits for Python's lock, up to 5 ms; the
checksum takes longer than the memory does, so nothing is lost outside the processor's cache."""


def read_params(folder: Path) -> dict[str, Array]:
    """Arrays by name. Raises BrokenParams.

    They are copied, not mapped: memory of our own can have huge pages (see `memory.py`). The
    checksum is made on the way, for a flipped bit would not be seen in what the model says.
    """
    try:
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        path = folder / PARAMS_FILE
        if path.stat().st_size != index["size"]:
            raise BrokenParams(f"{path} has {path.stat().st_size} bytes, not {index['size']}")
        memory, crc32 = _read(path, index["size"])
        if crc32 != index["crc32"]:
            raise BrokenParams(f"{path} does not match its recorded checksum")
        return _views(memory, index["tensors"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{folder}: {error}") from error


def ordered_params(arrays: dict[str, Array], infos: Sequence[ParamInfo]) -> Any:
    """The array of tensors that `forward` takes. Raises BrokenParams where they do not fit."""
    tensors = []
    for info in infos:
        array = arrays.get(info.name)
        if array is None or array.shape != info.shape or str(array.dtype) != info.dtype:
            raise BrokenParams(f"packed tensor {info.name} is not {info.dtype} {info.shape}")
        tensors.append(tvm_ffi.from_dlpack(array))
    return tvm_ffi.convert(tensors)


def _read(path: Path, size: int) -> tuple[Array, int]:
    """A file's bytes, and their checksum."""
    memory, crc32 = zeroed(size), 0
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, PIECE):
            piece = memory[start : start + PIECE].data
            done = 0
            while done < len(piece):
                count = file.readinto(piece[done:])
                if not count:
                    raise BrokenParams(f"{path} ended after {start + done} of {size} bytes")
                done += count
            crc32 = zlib.crc32(piece, crc32)
    return memory, crc32


def _views(memory: Array, entries: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """Raises ValueError unless the tensors fill the file one after the other, each name once."""
    arrays: dict[str, Array] = {}
    end = 0
    for entry in entries:
        array = _view(memory, entry)
        if entry["name"] in arrays or entry["offset"] != end + -end % PARAMS_ALIGNMENT:
            raise ValueError(f"tensor {entry['name']} stands twice or in the wrong place")
        arrays[entry["name"]] = array
        end = entry["offset"] + array.nbytes
    if end != len(memory) or ROPE_PARAM not in arrays:
        raise ValueError(f"the tensors do not fill {PARAMS_FILE}, or {ROPE_PARAM} is not there")
    return arrays


def _view(memory: Array, entry: dict[str, Any]) -> Array:
    shape = tuple(entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if count < 0:
        raise ValueError(f"shape {shape}")
    flat: Array = np.frombuffer(memory, entry["dtype"], count, entry["offset"])
    return flat.reshape(shape)
