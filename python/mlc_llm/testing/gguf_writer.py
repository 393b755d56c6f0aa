"""Writes small GGUF version 3 files for tests.

Format: the GGUF specification (ggml, docs/gguf.md), sections "File structure" and "Tensor data".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.record import record

from ..loader.gguf_metadata import Value
from ..loader.gguf_tensors import KINDS
from .block_quantizers import quantize_blocks

ALIGNMENT = 32
_NUMBER_OF_KIND = {kind: number for number, (kind, _, _) in KINDS.items()}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64 = 4, 5, 6, 7, 8, 9, 10, 11
_PACKING = {
    _UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?", _UINT64: "<Q", _INT64: "<q",
}  # fmt: skip


@record()
class TensorData:
    """A tensor of a file: its NumPy shape (the contiguous axis last) and its bytes."""

    shape: tuple[int, ...]
    kind: str
    data: bytes

    @staticmethod
    def quantized(values: npt.NDArray[np.float32], kind: str) -> TensorData:
        """`values` in the blocks of `kind` (see `block_quantizers.py`)."""
        return TensorData(values.shape, kind, quantize_blocks(values, kind))


def write_gguf(
    path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, TensorData]
) -> None:
    """Write a file.

    Metadata values are str, bool, int, float, or lists of one of these. An int becomes the first of
    uint32, int32, uint64, int64 that can hold it; a float becomes float32. All items of a list get
    one type; for ints, int32 is tried before uint32.
    """
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), _value(value)]
    offset = 0
    for name, tensor in tensors.items():
        head.append(_tensor_info(name, tensor, offset))
        offset += _aligned(len(tensor.data))
    table = b"".join(head)
    with path.open("wb") as file:
        file.write(table.ljust(_aligned(len(table)), b"\0"))
        for tensor in tensors.values():
            file.write(tensor.data.ljust(_aligned(len(tensor.data)), b"\0"))


def _tensor_info(name: str, tensor: TensorData, offset: int) -> bytes:
    sizes = tensor.shape[::-1]
    return (
        _string(name)
        + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        + struct.pack("<IQ", _NUMBER_OF_KIND[tensor.kind], offset)
    )


def _value(value: Value) -> bytes:
    if isinstance(value, (list, tuple)):
        kind = _common_type(value)
        if kind == _UINT32 and all(isinstance(one, int) and one < 2**31 for one in value):
            kind = _INT32  # ggml writes lists like this, and llama.cpp reads no other token types
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + _items(kind, value)
    kind = _common_type([value])
    return struct.pack("<I", kind) + _items(kind, [value])


def _items(kind: int, values: Sequence[Value]) -> bytes:
    if kind == _STRING:
        return b"".join(_string(str(value)) for value in values)
    return b"".join(struct.pack(_PACKING[kind], value) for value in values)


def _common_type(values: Sequence[Value]) -> int:
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        raise TypeError(f"a list of one type and at least one item was expected, not {kinds}")
    (kind,) = kinds
    if kind is int:
        integers = [value for value in values if isinstance(value, int)]
        return _integer_type(min(integers), max(integers))
    return {str: _STRING, bool: _BOOL, float: _FLOAT32}[kind]


def _integer_type(low: int, high: int) -> int:
    ranges = {
        _UINT32: (0, 2**32), _INT32: (-(2**31), 2**31),
        _UINT64: (0, 2**64), _INT64: (-(2**63), 2**63),
    }  # fmt: skip
    for kind, (first, end) in ranges.items():
        if first <= low and high < end:
            return kind
    raise OverflowError(f"no GGUF integer holds {low} to {high}")


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
