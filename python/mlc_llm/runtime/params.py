"""Packed weights as arrays, and as the tensors that compiled code takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlc_llm.library.metadata import (
    PARAMS_ALIGNMENT,
    PARAMS_FILE,
    ParamInfo,
    long_rope_param,
    rope_param,
    rope_scaling_param,
)
from mlc_llm.runtime.packed_file import BrokenParams, Entry, Packed
from mlc_llm.runtime.rope import Rotation

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device, DeviceTensor

Array = npt.NDArray[np.generic]
_log = logging.getLogger(__name__)


def params_in(packed: Packed) -> dict[str, Array]:
    """Arrays by name; they share the memory of `packed`. Raises BrokenParams."""
    try:
        return _views(np.frombuffer(packed.memory, np.uint8)[: packed.size], packed.entries)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{packed.folder}: {error}") from error


def ordered_params(
    arrays: dict[str, Array], infos: Sequence[ParamInfo], device: Device
) -> list[DeviceTensor]:
    """The tensors that `forward` takes behind all others.

    Raises BrokenParams if an array is missing, or its type or shape is not that in `infos`.
    """
    tensors = []
    for info in infos:
        array = arrays.get(info.name)
        if array is None or array.shape != info.shape or str(array.dtype) != info.dtype:
            raise BrokenParams(f"packed tensor {info.name} is not {info.dtype} {info.shape}")
        tensors.append(device.upload(array))
    return tensors


def rotations(arrays: dict[str, Array], count: int, longest: int) -> list[Rotation]:
    """The model's rotary embeddings, for sequences of at most `longest` tokens.

    Raises BrokenParams if an array is missing or has another type.
    """
    found = []
    for i in range(count):
        scaling = _floats(arrays, rope_scaling_param(i))
        if scaling.shape != (2,):
            raise BrokenParams(f"packed tensor {rope_scaling_param(i)} is not 2 numbers")
        magnitude, long_after = scaling.tolist()
        is_long = 0 < long_after < longest
        if is_long:
            _log.info("texts may exceed %d tokens: rotary factors for long ones hold", long_after)
        frequencies = _floats(arrays, long_rope_param(i) if is_long else rope_param(i))
        found.append(Rotation(frequencies, magnitude))
    return found


def _floats(arrays: dict[str, Array], name: str) -> npt.NDArray[np.float32]:
    """A copy of an array."""
    array = arrays.get(name)
    if array is None or array.dtype != np.float32:
        raise BrokenParams(f"packed tensor {name} is not there as float32")
    return np.array(array, np.float32)


def _views(memory: Array, entries: Sequence[Entry]) -> dict[str, Array]:
    """Arrays by name, over a file's bytes.

    Raises ValueError unless the tensors fill the file one after the other, each name once.
    """
    arrays: dict[str, Array] = {}
    end = 0
    for entry in entries:
        array = _view(memory, entry)
        if entry["name"] in arrays or entry["offset"] != end + -end % PARAMS_ALIGNMENT:
            raise ValueError(f"tensor {entry['name']} stands twice or in the wrong place")
        arrays[entry["name"]] = array
        end = entry["offset"] + array.nbytes
    if end != len(memory):
        raise ValueError(f"the tensors do not fill {PARAMS_FILE}")
    return arrays


def _view(memory: Array, entry: Entry) -> Array:
    shape = tuple(entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if count < 0:
        raise ValueError(f"shape {shape}")
    flat: Array = np.frombuffer(memory, entry["dtype"], count, entry["offset"])
    return flat.reshape(shape)
