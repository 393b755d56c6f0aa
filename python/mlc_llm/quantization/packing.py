"""Packed weight matrices: the bytes the kernels read, made without losing a bit.

A matrix [n, k] is cut into blocks of 16 rows; the rows of a block lie interleaved, so that a vector
holds one word of each row. Within a group of columns, with quads = group / 4:

    8-bit  word j (of quads):      byte i holds element  quads * i + j
    4-bit  word j (of quads / 2):  byte i holds element  quads * i + j  in its low nibble
                                   and  quads * i + j + quads / 2  in its high nibble

Rows are padded to a multiple of 32 with zero scales.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.kernels.formats import BLOCK, WeightFormat, padded_rows
from mlc_llm.quantization.ggml_blocks import Grouped

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Packed:
    """A matrix ready for the kernels: `tensors` are words, then scale, then minimum if there."""

    format: WeightFormat
    rows: int
    columns: int
    tensors: tuple[Array, ...]


_HALF = {
    "Q4_0": WeightFormat(4, 32, offset=8),
    "Q4_1": WeightFormat(4, 32, has_minimum=True),
    "Q5_0": WeightFormat(8, 32, offset=16),
    "Q5_1": WeightFormat(8, 32, has_minimum=True),
    "Q8_0": WeightFormat(8, 32, offset=128),
}
_SINGLE = {
    "Q4_K": WeightFormat(4, 32, has_minimum=True, scale_dtype="float32"),
    "Q5_K": WeightFormat(8, 32, has_minimum=True, scale_dtype="float32"),
    "Q6_K": WeightFormat(8, 16, offset=32, scale_dtype="float32"),
}
_FLOATS = {"F16": WeightFormat(16), "BF16": WeightFormat(32), "F32": WeightFormat(32)}
"""bfloat16 is widened: no kernel reads it."""


def format_of_kind(kind: str, *, half: bool) -> WeightFormat:
    """The packed format that holds a GGUF tensor type exactly.

    half: the kernels read float16 (scales, and matrices of floats); otherwise all is float32.
    """
    fmt = {**_HALF, **_SINGLE, **_FLOATS}[kind]
    if half:
        return fmt
    return replace(fmt, bits=32) if fmt.is_float else replace(fmt, scale_dtype="float32")


def pack(grouped: Grouped, fmt: WeightFormat) -> Packed:
    """Packs quantised values; `fmt` comes from `format_of_kind`."""
    n, k = grouped.q.shape
    assert (fmt.bits, fmt.group) == (grouped.bits, grouped.group), "format of another kind"
    assert fmt.scale_dtype == "float32" or grouped.half, "scales do not fit float16"
    tensors = [_words(_pad(grouped.q), fmt)]
    scales = [grouped.scale] + ([grouped.minimum] if grouped.minimum is not None else [])
    for scale in scales:
        tensors.append(_interleave(_pad(scale)).astype(fmt.scale_dtype))
    return Packed(fmt, n, k, tuple(tensors))


def pack_floats(weights: Array) -> Packed:
    """Packs a float16 or float32 matrix [n, k]."""
    n, k = weights.shape
    fmt = WeightFormat(bits=weights.dtype.itemsize * 8)
    blocks = _pad(weights).reshape(-1, BLOCK, k)
    return Packed(fmt, n, k, (np.ascontiguousarray(blocks.transpose(0, 2, 1)),))


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """The matrix as float32 [rows, columns]: the reference the kernels and tests are held to."""
    fmt, k = packed.format, packed.columns
    if fmt.is_float:
        rows = packed.tensors[0].transpose(0, 2, 1).reshape(-1, k)
        floats: npt.NDArray[np.float32] = rows[: packed.rows].astype(np.float32)
        return floats
    words = packed.tensors[0].view(np.uint32)  # [blocks, groups, words, 16]
    shifts = np.arange(0, 32, 8, dtype=np.uint32).reshape(4, 1, 1, 1, 1)
    octets = (words[None] >> shifts) & np.uint32(0xFF)  # [byte, blocks, groups, words, 16]
    parts = [octets & 15, octets >> 4] if fmt.bits == 4 else [octets]
    order = (2, 5, 3, 0, 1, 4)  # [blocks, 16, groups, byte, part, word]
    q = np.stack(parts, axis=1).transpose(order)
    q = q.reshape(-1, k // fmt.group, fmt.group).astype(np.float32)
    scale, *minimum = (_deinterleave(t) for t in packed.tensors[1:])
    value = scale * q + minimum[0] if minimum else scale * (q - np.float32(fmt.offset))
    result: npt.NDArray[np.float32] = value.reshape(-1, k)[: packed.rows]
    return result


def _words(q: Array, fmt: WeightFormat) -> Array:
    n, k = q.shape
    parts = 8 // fmt.bits
    split = q.reshape(n // BLOCK, BLOCK, k // fmt.group, 4, parts, fmt.words)
    octets = split[..., 0, :]
    if parts == 2:
        octets = octets | (split[..., 1, :] << 4)
    ordered = octets.transpose(0, 2, 4, 1, 3)  # [blocks, groups, words, 16, byte]
    return np.ascontiguousarray(ordered).view("<i4")[..., 0]


def _pad(rows: Array) -> Array:
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def _interleave(scale: Array) -> Array:
    return np.ascontiguousarray(scale.reshape(-1, BLOCK, scale.shape[1]).transpose(0, 2, 1))


def _deinterleave(scale: Array) -> npt.NDArray[np.float32]:
    blocks, groups, _ = scale.shape
    rows = scale.transpose(0, 2, 1).reshape(blocks * BLOCK, groups, 1)
    result: npt.NDArray[np.float32] = rows.astype(np.float32)
    return result
