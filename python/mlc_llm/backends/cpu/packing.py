"""Packed weight matrices: the bytes the kernels read, made without losing a bit.

A matrix [n, k] is cut into blocks of 32 rows and groups of columns. Each block and group has its
words first, the 32 rows side by side, then the scales, then the minima if there are any. In
formats with spans, the units of several groups lie before them. So a product reads the bytes in
their order, and the processor's own prefetching keeps up with it. With quads = group / 4:

    8-bit  word j (of quads):      byte i holds element  quads * i + j
    4-bit  word j (of quads / 2):  byte i holds element  quads * i + j  in its low nibble
                                   and  quads * i + j + quads / 2  in its high nibble
    5-bit  as 4-bit behind a word that has the bits above the nibbles: bit (6-bit: pair of bits) j
    6-bit  of its byte i belongs to element  quads * i + j

Rows are padded to a multiple of 32 with zero scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cpu.formats import BLOCK, UNIT_WORDS, WeightFormat, padded_rows
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.float8 import E4M3
from mlc_llm.record import record

Array = npt.NDArray[Any]


@record()
class Packed:
    """A matrix ready for the kernels; `tensor` as `formats.py` describes it."""

    format: WeightFormat
    rows: int
    columns: int
    tensor: Array


LARGEST = 32512
"""Largest fixed-point value. With rounded scales it stays below what two signed bytes can hold."""


def pack(grouped: Grouped, fmt: WeightFormat) -> Packed:
    """Packs quantised values; `fmt` comes from `format_of_kind`."""
    n, k = grouped.q.shape
    assert (fmt.bits, fmt.group) == (grouped.bits, grouped.group), "format of another kind"
    assert fmt.scale_dtype != "float16" or grouped.half, "scales do not fit float16"
    parts = [_words(_pad(grouped.q), fmt)]
    scales = [grouped.scale] + ([grouped.minimum] if grouped.minimum is not None else [])
    units = _units(grouped) if fmt.is_fixed_point else None
    if units is not None:
        scales = _in_units(scales, np.where(units > 0, units, 1)[:, None], fmt)
    shared = _shared_units(grouped, fmt)
    scales = (
        [_factors(s, u, fmt) for s, u in zip(scales, shared, strict=True)] if shared else scales
    )
    parts += [_interleaved(_pad(scale).astype(fmt.scale_dtype)) for scale in scales]
    tensor = np.concatenate(parts, axis=2)
    if shared:
        blocks, spans = parts[0].shape[0], k // fmt.group // fmt.span
        heads = [_interleaved(_pad(unit).astype("float16")) for unit in shared]
        tensor = np.concatenate([*heads, tensor.reshape(blocks, spans, -1)], axis=2)
    if units is not None:
        tensor = np.concatenate([tensor, _unit_group(units, fmt)], axis=1)
    return Packed(fmt, n, k, tensor)


def _shared_units(grouped: Grouped, fmt: WeightFormat) -> list[Array]:
    """float32 [n, spans]: the units of scales, and of minima if there are any; none where there are
    no spans."""
    if fmt.span == 1:
        return []
    units = [grouped.unit] + ([grouped.minimum_unit] if fmt.has_minimum else [])
    found = [unit for unit in units if unit is not None]
    assert len(found) == len(units), "scales have no units"
    return found


def _factors(scale: Array, unit: Array, fmt: WeightFormat) -> Array:
    """The whole numbers that make scales of their units. A unit of 0 keeps the sign of a scale."""
    wide = np.repeat(unit, fmt.span, axis=1)
    sign = np.copysign(np.float32(1), scale) * np.copysign(np.float32(1), wide)
    factors: Array = np.rint(np.divide(scale, wide, out=sign, where=wide != 0))
    assert (np.abs(factors + 0.5) < 128).all(), "whole numbers of more than 8 bits"
    assert (factors * wide == scale).all(), "scales are not multiples of their units"
    return factors


def _units(grouped: Grouped) -> Array:
    """float32 [n]: the unit of each row, in which its largest value is `LARGEST`."""
    ends = [-grouped.offset, 2**grouped.bits - 1 - grouped.offset]
    low = 0 if grouped.minimum is None else grouped.minimum
    largest = [np.abs(grouped.scale * np.float32(end) + low).max(axis=1) for end in ends]
    units: Array = (np.maximum(*largest) / LARGEST).astype(np.float32)
    return units


def _in_units(scales: list[Array], units: Array, fmt: WeightFormat) -> list[Array]:
    """Scales, and minima if there are any, as whole numbers.

    A minimum makes up for what its scale lost in the middle of the values, where most of them are.
    """
    scale, *minimum = (part / units for part in scales)
    whole = np.rint(scale)
    middle = (2**fmt.bits - 1) / 2
    return [whole, *(np.rint(low + middle * (scale - whole)) for low in minimum)]


def _unit_group(units: Array, fmt: WeightFormat) -> Array:
    """int32 [blocks, 1, stride] that begins with the units' bits."""
    blocks = padded_rows(len(units)) // BLOCK
    group = np.zeros((blocks, 1, fmt.stride), np.int32)
    padded = np.pad(units, (0, blocks * BLOCK - len(units)))
    group[:, 0, :BLOCK] = padded.astype(np.float32).view(np.int32).reshape(blocks, BLOCK)
    return group


def pack_floats(weights: Array, fmt: WeightFormat) -> Packed:
    """Packs a matrix [n, k] of floats whose values the format holds exactly."""
    n, k = weights.shape
    values = _bfloat_words(weights) if fmt.is_bfloat else weights.astype(f"float{fmt.bits}")
    blocks = _pad(values).reshape(-1, BLOCK, values.shape[1])
    return Packed(fmt, n, k, np.ascontiguousarray(blocks.transpose(0, 2, 1)))


def _bfloat_words(weights: Array) -> npt.NDArray[np.int32]:
    """Neighbours of each row as bfloat16 in a word."""
    even = np.pad(weights, ((0, 0), (0, weights.shape[1] % 2)))
    bits = np.ascontiguousarray(even, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "values of more bits than bfloat16 has"
    return (bits[:, ::2] >> 16 | bits[:, 1::2]).view(np.int32)


def _of_bfloat_words(words: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Rows of which `_bfloat_words` made these."""
    parts = np.stack([words << 16, words & np.int32(-0x10000)], axis=-1)
    return parts.reshape(len(words), -1).view(np.float32)


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """The matrix as float32 [rows, columns]: the reference for kernels and tests."""
    fmt, k = packed.format, packed.columns
    if fmt.is_float:
        swapped = packed.tensor.transpose(0, 2, 1)
        rows = swapped.reshape(-1, swapped.shape[2])[: packed.rows]
        return _of_bfloat_words(rows)[:, :k] if fmt.is_bfloat else rows.astype(np.float32)
    spans = k // fmt.group // fmt.span
    tensor = packed.tensor[:, :spans]
    groups = tensor[..., fmt.unit_words :].reshape(len(tensor), -1, fmt.group_stride)
    q = _values(groups[..., : fmt.scale_start(0)], fmt)
    scale, *minimum = (_scales(groups, fmt, kind) for kind in range(1 + fmt.has_minimum))
    if fmt.span > 1:
        units = (_span_units(tensor, fmt, kind) for kind in range(1 + fmt.has_minimum))
        scale, *minimum = (a * b for a, b in zip((scale, *minimum), units, strict=True))
    if fmt.is_fixed_point:
        of_row = np.ascontiguousarray(packed.tensor[:, spans, :BLOCK]).view(np.float32)
        scale, *minimum = (part * of_row.reshape(-1, 1, 1) for part in (scale, *minimum))
    if fmt.float8:
        q = E4M3[q.astype(np.uint8)]
    elif not minimum:
        q = q - np.float32(fmt.offset)
    value = scale * q + minimum[0] if minimum else scale * q
    result: npt.NDArray[np.float32] = value.reshape(-1, k)[: packed.rows]
    return result


def _words(q: Array, fmt: WeightFormat) -> Array:
    """int32 [blocks, groups, words * 32] of the values [n, k]."""
    n, k = q.shape
    split = q.reshape(n // BLOCK, BLOCK, k // fmt.group, 4, fmt.parts, fmt.low_words)
    octets = split[..., 0, :]
    if fmt.parts == 2:
        octets = octets & 15 | (split[..., 1, :] << 4)
    if fmt.high_bits:
        octets = np.concatenate([_high_octets(split, fmt), octets], axis=4)
    ordered = octets.transpose(0, 2, 4, 1, 3)  # [blocks, groups, words, 32, byte]
    return np.ascontiguousarray(ordered).view("<i4").reshape(n // BLOCK, k // fmt.group, -1)


def _high_octets(split: Array, fmt: WeightFormat) -> Array:
    """uint8 [blocks, 32, groups, byte, 1]: the bits above the low four of all quads."""
    quads = split.reshape(*split.shape[:4], -1) >> 4
    shifts = fmt.high_bits * np.arange(quads.shape[-1], dtype=np.uint8)
    octets: Array = np.bitwise_or.reduce(quads << shifts, axis=4, keepdims=True)
    return octets


def _values(words: Array, fmt: WeightFormat) -> Array:
    """float32 [rows, groups, group] of the values in the words [blocks, groups, words * 32]."""
    blocks, groups, _ = words.shape
    split = np.ascontiguousarray(words).view(np.uint8)
    octets = split.reshape(blocks, groups, fmt.words, BLOCK, 4)
    low = octets[:, :, fmt.high_words :]
    parts = np.stack([low & 15, low >> 4] if fmt.parts == 2 else [low])
    q = parts.transpose(1, 4, 2, 5, 0, 3)  # [blocks, 32, groups, byte, part, word]
    q = q.reshape(*q.shape[:4], -1)
    if fmt.high_bits:
        shifts = fmt.high_bits * np.arange(fmt.group // 4, dtype=np.uint8)
        high = octets[:, :, 0].transpose(0, 2, 1, 3)[..., None] >> shifts
        q = q | (high & ((1 << fmt.high_bits) - 1)) << 4
    values: Array = q.reshape(blocks * BLOCK, groups, fmt.group).astype(np.float32)
    return values


def _scales(groups: Array, fmt: WeightFormat, kind: int) -> Array:
    """float32 [rows, groups, 1]: the scales (kind 0) or minima (1), in units if there are any."""
    start = fmt.scale_start(kind)
    return _floats(groups[..., start : start + fmt.scale_words], fmt.scale_dtype)


def _span_units(tensor: Array, fmt: WeightFormat, kind: int) -> Array:
    """float32 [rows, groups, 1]: the units of the scales (kind 0) or minima (1)."""
    start = kind * UNIT_WORDS
    units = _floats(tensor[..., start : start + UNIT_WORDS], "float16")
    return np.repeat(units, fmt.span, axis=1)


def _pad(rows: Array) -> Array:
    """The rows and zeros behind them, up to a whole block."""
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def _interleaved(scale: Array) -> Array:
    """int32 [blocks, groups, scale words] of the scales [n, groups]."""
    blocks = scale.reshape(-1, BLOCK, scale.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).view("<i4")


def _floats(words: Array, dtype: str) -> Array:
    """float32 [rows, numbers of a row, 1] of numbers in words [blocks, spans, ...]."""
    given = np.ascontiguousarray(words).view(dtype)
    numbers = given.reshape(len(words), -1, BLOCK).transpose(0, 2, 1)
    result: Array = numbers.reshape(len(words) * BLOCK, -1, 1).astype(np.float32)
    return result
