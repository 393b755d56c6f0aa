"""The tensor table of a GGUF file, checked against the file before any data is used.

Format: "Tensor info" and "Tensor data" of the GGUF specification. Block sizes are those of ggml.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_cursor import MAX_TENSOR_NAME_BYTES, Cursor, printable
from mlc_llm.loader.gguf_metadata import UINT32, Metadata
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

# type number -> (kind, values in a block, bytes of a block)
KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
# types of ggml, some of them removed there, that are not supported here
OTHER_KINDS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
}
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 65_536
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dims, one size, type, offset


@record()
class GGUFTensor:
    """One tensor. `shape` is in NumPy order: rows first, the contiguous axis last."""

    name: str
    shape: tuple[int, ...]
    kind: str
    bytes: memoryview
    """Read-only, of the memory-mapped file."""
    path: Path

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The same bytes as a vector."""
        return np.frombuffer(self.bytes, np.uint8)

    def matrix(self, index: int) -> GGUFTensor:
        """One matrix of a stack [matrices, rows, columns]."""
        size = len(self.bytes) // self.shape[0]
        here = self.bytes[index * size : (index + 1) * size]
        return replace(self, shape=self.shape[1:], bytes=here)

    def give_back(self) -> None:
        """Let the system take back the memory of all pages of this file that were read. `data`
        stays usable: the next access reads the file again."""
        mapping = self.bytes.obj
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


@record()
class _Info:
    """A row of the tensor table. `offset` is in bytes from the start of the data part."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int


def read_tensors(cursor: Cursor, count: int, metadata: Metadata) -> dict[str, GGUFTensor]:
    """Check `count` rows at the cursor and map their data.

    Raises ModelFileError if the table does not fit the file, UnsupportedModel for a tensor type of
    ggml that is not supported.
    """
    alignment = _alignment(cursor, metadata)
    infos: dict[str, _Info] = {}
    for index in range(count):
        info = _read_info(cursor, index, alignment)
        if info.name in infos:
            cursor.fail(f"tensor {printable(info.name)} occurs twice")
        infos[info.name] = info
    start = -(-cursor.pos // alignment) * alignment
    _check_ranges(cursor, sorted(infos.values(), key=lambda i: i.offset), start)
    return {name: _map_data(cursor, info, start) for name, info in infos.items()}


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return _DEFAULT_ALIGNMENT
    value = metadata[key] if metadata.type_of(key) == UINT32 else None
    if not isinstance(value, int):
        cursor.fail(f"{key} is not of the type uint32")
    if value & (value - 1) or not 1 <= value <= _MAX_ALIGNMENT:
        cursor.fail(f"{key} is {value}; it must be a power of two from 1 to {_MAX_ALIGNMENT}")
    return value


def _read_info(cursor: Cursor, index: int, alignment: int) -> _Info:
    name = _read_name(cursor, f"name of tensor {index}")
    what = f"tensor {printable(name)}"
    shape = _read_shape(cursor, what)
    kind, block, block_bytes = _read_kind(cursor, what)
    if shape[-1] % block:
        cursor.fail(f"{what}: rows of {shape[-1]} values are not whole {kind} blocks of {block}")
    offset = cursor.u64(f"offset of {what}")
    if offset % alignment:
        cursor.fail(f"{what}: offset {offset} is not a multiple of the alignment {alignment}")
    return _Info(name, shape, kind, offset, math.prod(shape) // block * block_bytes)


def _read_name(cursor: Cursor, what: str) -> str:
    raw = cursor.string(what, MAX_TENSOR_NAME_BYTES)
    if not raw:
        cursor.fail(f"{what} is empty")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        cursor.fail(f"{what} {printable(raw)} is not UTF-8")


def _read_shape(cursor: Cursor, what: str) -> tuple[int, ...]:
    dims = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= dims <= _MAX_DIMS:
        cursor.fail(f"{what} has {dims} dimensions; 1 to {_MAX_DIMS} are allowed")
    shape = tuple(cursor.u64(f"shape of {what}") for _ in range(dims))[::-1]
    # every kind takes more than half a byte for a value, so a larger product cannot fit
    if 0 in shape or math.prod(shape) > 2 * cursor.size:
        cursor.fail(f"{what}: shape {list(shape)} is empty or does not fit the file")
    return shape


def _read_kind(cursor: Cursor, what: str) -> tuple[str, int, int]:
    number = cursor.u32(f"type of {what}")
    if number in OTHER_KINDS:
        known = ", ".join(kind for kind, _, _ in KINDS.values())
        raise UnsupportedModel(
            f"{cursor.path}: {what} has the type {OTHER_KINDS[number]}; supported are {known}"
        )
    if number not in KINDS:
        cursor.fail(f"{what} has the unknown type {number}")
    return KINDS[number]


def _check_ranges(cursor: Cursor, infos: list[_Info], start: int) -> None:
    """Check that every tensor is inside the file and overlaps no other. infos: sorted by offset."""
    free_from, before = 0, ""
    for info in infos:
        what = f"tensor {printable(info.name)}"
        if info.offset < free_from:
            cursor.fail(f"{what} overlaps tensor {printable(before)}")
        free_from, before = info.offset + info.size, info.name
        if start + free_from > cursor.size:
            cursor.fail(
                f"data of {what} ends at byte {start + free_from} of a file of "
                f"{cursor.size} bytes: truncated?"
            )


def _map_data(cursor: Cursor, info: _Info, start: int) -> GGUFTensor:
    first = start + info.offset
    here = memoryview(cursor.buffer)[first : first + info.size]
    return GGUFTensor(info.name, info.shape, info.kind, here, cursor.path)
