"""Packed weights as arrays, and as the tensors that compiled code takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.library.metadata import PARAMS_ALIGNMENT, PARAMS_FILE, ParamInfo, rope_param
from mlc_llm.runtime.packed_file import BrokenParams, Entry, Packed

if TYPE_CHECKING:
    from mlc_llm.backends.base import Device

Array = npt.NDArray[np.generic]


def params_in(packed: Packed) -> dict[str, Array]:
    """Arrays by name; they share the memory of `packed`. Raises BrokenParams."""
    try:
        return _views(np.frombuffer(packed.memory, np.uint8)[: packed.size], packed.entries)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{packed.folder}: {error}") from error


def ordered_params(
    arrays: dict[str, Array], infos: Sequence[ParamInfo], device: Device
) -> tvm_ffi.Array:
    """The tensors that `forward` takes, as one TVM array.

    Raises BrokenParams if an array is missing, or its type or shape is not that in `infos`.
    """
    tensors = []
    for info in infos:
        array = arrays.get(info.name)
        if array is None or array.shape != info.shape or str(array.dtype) != info.dtype:
            raise BrokenParams(f"packed tensor {info.name} is not {info.dtype} {info.shape}")
        tensors.append(device.upload(array))
    return tvm_ffi.convert(tensors)


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
    if end != len(memory) or rope_param(0) not in arrays:
        raise ValueError(f"the tensors do not fill {PARAMS_FILE}, or {rope_param(0)} is not there")
    return arrays


def _view(memory: Array, entry: Entry) -> Array:
    shape = tuple(entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if count < 0:
        raise ValueError(f"shape {shape}")
    flat: Array = np.frombuffer(memory, entry["dtype"], count, entry["offset"])
    return flat.reshape(shape)
