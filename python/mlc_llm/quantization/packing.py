"""Packed weight matrices: the bytes the kernels read, made without losing a bit.

A matrix [n, k] is cut into blocks of 32 rows and groups of columns. Of each block and group come
first the words, the 32 rows side by side, then the scales, then the minima if there are any. With
quads = group / 4:

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
    """A matrix ready for the kernels; `tensor` as `kernels/formats.py` describes it."""

    format: WeightFormat
    rows: int
    columns: int
    tensor: Array


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
    parts = [_words(_pad(grouped.q), fmt)]
    scales = [grouped.scale] + ([grouped.minimum] if grouped.minimum is not None else [])
    parts += [_interleaved(_pad(scale).astype(fmt.scale_dtype)) for scale in scales]
    return Packed(fmt, n, k, np.concatenate(parts, axis=2))


def pack_floats(weights: Array) -> Packed:
    """Packs a float16 or float32 matrix [n, k]."""
    n, k = weights.shape
    fmt = WeightFormat(bits=weights.dtype.itemsize * 8)
    blocks = _pad(weights).reshape(-1, BLOCK, k)
    return Packed(fmt, n, k, np.ascontiguousarray(blocks.transpose(0, 2, 1)))


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """The matrix as float32 [rows, columns]: the reference the kernels and tests are held to."""
    fmt, k = packed.format, packed.columns
    if fmt.is_float:
        rows = packed.tensor.transpose(0, 2, 1).reshape(-1, k)
        floats: npt.NDArray[np.float32] = rows[: packed.rows].astype(np.float32)
        return floats
    end = fmt.words * BLOCK
    q = _values(packed.tensor[..., :end], fmt)
    scale, *minimum = (
        _floats(packed.tensor[..., start : start + fmt.scale_words], fmt)
        for start in range(end, fmt.stride, fmt.scale_words)
    )
    value = scale * q + minimum[0] if minimum else scale * (q - np.float32(fmt.offset))
    result: npt.NDArray[np.float32] = value.reshape(-1, k)[: packed.rows]
    return result


def _words(q: Array, fmt: WeightFormat) -> Array:
    """int32 [blocks, groups, words * 32] of the values [n, k]."""
    n, k = q.shape
    parts = 8 // fmt.bits
    split = q.reshape(n // BLOCK, BLOCK, k // fmt.group, 4, parts, fmt.words)
    octets = split[..., 0, :]
    if parts == 2:
        octets = octets | (split[..., 1, :] << 4)
    ordered = octets.transpose(0, 2, 4, 1, 3)  # [blocks, groups, words, 32, byte]
    return np.ascontiguousarray(ordered).view("<i4").reshape(n // BLOCK, k // fmt.group, -1)


def _values(words: Array, fmt: WeightFormat) -> Array:
    """float32 [rows, groups, group] of the values in the words."""
    blocks, groups, _ = words.shape
    split = np.ascontiguousarray(words).view(np.uint8)
    octets = split.reshape(blocks, groups, fmt.words, BLOCK, 4)
    parts = [octets & 15, octets >> 4] if fmt.bits == 4 else [octets]
    order = (1, 4, 2, 5, 0, 3)  # [blocks, 32, groups, byte, part, word]
    q = np.stack(parts).transpose(order)
    values: Array = q.reshape(blocks * BLOCK, groups, fmt.group).astype(np.float32)
    return values


def _pad(rows: Array) -> Array:
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def _interleaved(scale: Array) -> Array:
    """int32 [blocks, groups, scale words] of the scales [n, groups]."""
    blocks = scale.reshape(-1, BLOCK, scale.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).view("<i4")


def _floats(words: Array, fmt: WeightFormat) -> Array:
    """float32 [rows, groups, 1] of the scales in their words."""
    scale = np.ascontiguousarray(words).view(fmt.scale_dtype)  # [blocks, groups, 32]
    blocks, groups, _ = scale.shape
    rows = scale.transpose(0, 2, 1).reshape(blocks * BLOCK, groups, 1)
    result: Array = rows.astype(np.float32)
    return result
