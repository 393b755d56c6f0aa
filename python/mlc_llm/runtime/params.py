"""Packed weights as arrays, and as the tensors that compiled code takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_llm.library.metadata import (
    FIRST_ROWS,
    PARAMS_ALIGNMENT,
    PARAMS_FILE,
    ParamInfo,
    long_rope_param,
    long_rope_rows_param,
    rope_param,
    rope_rows_param,
    rope_scaling_param,
)
from mlc_llm.runtime.packed_file import BrokenParams, Packed
from mlc_llm.runtime.rope import Rotation
from mlc_llm.support.host_array import HostArray

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device, DeviceTensor

_log = logging.getLogger(__name__)


def params_in(packed: Packed) -> dict[str, HostArray]:
    """Arrays by name; they share the memory of `packed`. Raises BrokenParams."""
    try:
        return _views(packed)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenParams(f"{packed.folder}: {error}") from error


def ordered_params(
    arrays: dict[str, HostArray], infos: Sequence[ParamInfo], device: Device
) -> list[DeviceTensor]:
    """The tensors that `forward` takes behind all others.

    Raises BrokenParams if an array is missing, or its type or shape is not that in `infos`.
    """
    tensors = []
    for info in infos:
        array = arrays.get(info.name)
        if array is None or array.shape != info.shape or array.dtype != info.dtype:
            raise BrokenParams(f"packed tensor {info.name} is not {info.dtype} {info.shape}")
        tensors.append(device.upload(array))
    return tensors


def rotations(arrays: dict[str, HostArray], count: int, longest: int) -> list[Rotation]:
    """The model's rotary embeddings, for sequences of at most `longest` tokens.

    Raises BrokenParams if an array is missing or has another type.
    """
    found = []
    for i in range(count):
        scaling = _floats(arrays, rope_scaling_param(i))
        if scaling.shape != (2,):
            raise BrokenParams(f"packed tensor {rope_scaling_param(i)} is not 2 numbers")
        magnitude, long_after = scaling.numbers()
        is_long = 0 < long_after < longest
        if is_long:
            _log.info("texts may exceed %d tokens: rotary factors for long ones hold", long_after)
        frequencies = _floats(arrays, long_rope_param(i) if is_long else rope_param(i))
        rows = _floats(arrays, long_rope_rows_param(i) if is_long else rope_rows_param(i))
        if rows.shape != (FIRST_ROWS, 2, *frequencies.shape):
            raise BrokenParams(f"the packed rows of rotary embedding {i} have shape {rows.shape}")
        found.append(Rotation(frequencies, magnitude, rows))
    return found


def _floats(arrays: dict[str, HostArray], name: str) -> HostArray:
    """A copy of an array: the weights may be given back when they are on their device."""
    array = arrays.get(name)
    if array is None or array.dtype != "float32":
        raise BrokenParams(f"packed tensor {name} is not there as float32")
    return array.copy()


def _views(packed: Packed) -> dict[str, HostArray]:
    """Arrays by name.

    Raises ValueError unless the tensors fill the file one after the other, each name once.
    """
    arrays: dict[str, HostArray] = {}
    end = 0
    for entry in packed.entries:
        shape, offset = tuple(entry["shape"]), entry["offset"]
        if not all(type(number) is int for number in (offset, *shape)):
            raise ValueError(f"shape {shape} at {offset}")
        array = HostArray(packed.memory, entry["dtype"], shape, offset)
        if entry["name"] in arrays or entry["offset"] != end + -end % PARAMS_ALIGNMENT:
            raise ValueError(f"tensor {entry['name']} stands twice or in the wrong place")
        arrays[entry["name"]] = array
        end = entry["offset"] + array.nbytes
    if end != packed.size:
        raise ValueError(f"the tensors do not fill {PARAMS_FILE}")
    return arrays
