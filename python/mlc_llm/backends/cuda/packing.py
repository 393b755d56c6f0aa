"""Packed weight matrices for GPUs, made without losing a bit; `formats.py` describes them.

Rows are padded to a multiple of 32 with zero scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, SPAN, WeightFormat, padded_rows
from mlc_llm.errors import UnsupportedModel
from mlc_llm.quantization.block_format import Grouped

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
LARGEST_EXPONENT = 15
"""The numbers of a group are below 2^15 times its scale."""
LEAST_EXPONENT = 24
"""2^-24 is the least float16."""
_NAN = 127
"""A byte of E4M3, without its sign, that is no number."""


def pack(grouped: Grouped, fmt: WeightFormat) -> Words:
    """The tensor of quantised values; `fmt` comes from `format_of_kind`."""
    assert grouped.bits <= fmt.bits and grouped.group == fmt.group, "format of another kind"
    assert fmt.scales != "float16" or grouped.half, "scales do not fit float16"
    assert (grouped.minimum is not None) == fmt.has_minimum
    scale, minimum = grouped.scale, grouped.minimum
    if fmt.float8:
        scale = _scales_of_numbers(grouped.q, scale)
    found = [scale] if minimum is None else [scale, minimum]
    parts = _values(_padded(grouped.q), fmt)
    if not fmt.has_units:
        return np.concatenate([*parts, *(_scales(_padded(one), fmt) for one in found)], axis=2)
    given = [grouped.unit, grouped.minimum_unit][: len(found)]
    units = [one for one in given if one is not None]
    assert len(units) == len(found), "scales have no units"
    whole = [_factors(one, unit) for one, unit in zip(found, units, strict=True)]
    tiles = np.concatenate([*parts, *(_scales(_padded(one), fmt) for one in whole)], axis=2)
    blocks, spans = len(tiles), tiles.shape[1] // SPAN
    heads = [_half_words(_padded(unit)) for unit in units]
    return np.concatenate([*heads, tiles.reshape(blocks, spans, -1)], axis=2)


def _scales_of_numbers(q: Array, scale: Array) -> Array:
    """The scales of 8-bit floats; a group with a byte that is no number has none either."""
    has_none = ((q & _NAN) == _NAN).reshape(*scale.shape, -1).any(axis=2)
    return np.where(has_none, np.float32(np.nan), scale)


def _factors(scale: Array, unit: Array) -> Array:
    """The whole numbers that make scales of their units."""
    wide = np.repeat(unit, scale.shape[1] // unit.shape[1], axis=1)
    factors: Array = np.rint(np.divide(scale, wide, out=np.zeros_like(scale), where=wide != 0))
    assert (np.abs(factors + 0.5) < 128).all(), "whole numbers of more than 8 bits"
    assert (factors * wide == scale).all(), "scales are not multiples of their units"
    return factors


def pack_floats(values: npt.NDArray[np.float32], fmt: WeightFormat, kind: str) -> Array:
    """The tensor of floats. kind: their type in the file: those of float16 keep the scale 1.

    Raises UnsupportedModel for numbers of which a float16 and its scale hold none."""
    padded = _padded(values)
    n, k = padded.shape
    groups = padded.reshape(n, k // GROUP, GROUP)
    scale = np.ones((n, k // GROUP), np.float32)
    if kind != "F16":
        exponent = np.frexp(np.abs(groups).max(axis=2))[1] - LARGEST_EXPONENT
        if exponent.max(initial=0) >= LARGEST_EXPONENT:
            raise UnsupportedModel("numbers of a matrix are above 2^30; use --device cpu")
        scale = np.ldexp(np.float32(1), np.maximum(exponent, -LEAST_EXPONENT)).astype(np.float32)
    left, planes = groups / scale[:, :, None], []
    for _ in range(fmt.planes):
        planes.append(left.astype(np.float16))
        left = left - planes[-1].astype(np.float32)
    words = [_float_words(one.reshape(n, k)) for one in planes]
    return np.concatenate([*words, _scales(scale, fmt)], axis=2)


def _float_words(halves: npt.NDArray[np.float16]) -> Words:
    """uint32 [n / 32, k / 32, words] of a plane [n, k]."""
    n, k = halves.shape
    # half, h and g of a row; t, step, pair and c of a column.
    split = halves.view(np.uint16).reshape(n // BLOCK, 2, 2, 8, k // GROUP, 4, 2, 2, 2)
    ordered = np.ascontiguousarray(split.transpose(0, 4, 1, 6, 3, 5, 7, 2, 8))
    return ordered.view("<u4").reshape(n // BLOCK, k // GROUP, -1)


def _padded(rows: Array) -> Array:
    """The rows and zeros behind them, up to a whole tile."""
    return np.pad(rows, ((0, padded_rows(len(rows)) - len(rows)), (0, 0)))


def _values(q: Array, fmt: WeightFormat) -> list[Words]:
    """uint32 [n / 32, k / 32, words] of values [n, k], and of the bits above the low four."""
    n, k = q.shape
    # half, h and g of a row; t, step, pair and c of a column.
    if fmt.group == GROUP:
        split = q.reshape(n // BLOCK, 2, 2, 8, k // GROUP, 4, 2, 2, 2)
    else:
        split = q.reshape(n // BLOCK, 2, 2, 8, k // GROUP, 2, 4, 2, 2).swapaxes(5, 6)
    split = split.astype(np.uint32)
    h, c = np.arange(2, dtype=np.uint32)[:, None], np.arange(2, dtype=np.uint32)
    pair = np.arange(2, dtype=np.uint32)[:, None, None]
    if fmt.bits == 8:
        ordered = split.transpose(0, 4, 7, 3, 5, 1, 6, 2, 8) << (8 * h + 16 * c)
        return [_joined(ordered, 2)]
    ordered = (split & 15).transpose(0, 4, 3, 5, 1, 6, 7, 2, 8) << (4 * (2 * pair + h) + 16 * c)
    low = _joined(ordered, 3)
    if not fmt.high_bits:
        return [low]
    step = np.arange(2, dtype=np.uint32)[:, None, None, None]
    place = 4 * step + 2 * pair + h
    above = (split >> 4).transpose(0, 4, 3, 5, 1, 6, 7, 2, 8)
    if fmt.high_bits == 2:
        return [low, _joined(above << (2 * place + 16 * c), 4)]
    half = np.arange(2, dtype=np.uint32)[:, None, None, None, None]
    return [low, _joined(above << (8 * half + place + 16 * c), 5)]


def _joined(bits: Words, axes: int) -> Words:
    """Of each word its bits, which the last axes have, as uint32 [n / 32, k / 32, words]."""
    blocks, tiles, *shape = bits.shape
    words = int(np.prod(shape[: len(shape) - axes]))
    joined: Words = np.bitwise_or.reduce(bits.reshape(blocks, tiles, words, -1), axis=-1)
    return joined


def _scales(scale: Array, fmt: WeightFormat) -> Words:
    """uint32 [n / 32, k / 32, words] of scales [n, k / group], or of minima."""
    n, groups = scale.shape
    tiles = groups // fmt.groups
    if fmt.scales == "float16":
        words = _half_words(scale)
    else:
        # half, h and g of a row.
        split = scale.reshape(n // BLOCK, 2, 2, 8, groups).transpose(0, 4, 3, 1, 2)
        kind = "<f4" if fmt.scales == "float32" else "i1"
        ordered = np.ascontiguousarray(split.astype(kind))
        words = ordered.reshape(n // BLOCK, groups, -1).view("<u4")
    return words.reshape(n // BLOCK, tiles, -1)


def _half_words(scale: Array) -> Words:
    """uint32 [n / 32, groups, words] of numbers [n, groups] as float16."""
    n, groups = scale.shape
    split = scale.astype(np.float16).reshape(n // BLOCK, 2, 2, 8, groups)
    ordered = np.ascontiguousarray(split.transpose(0, 4, 3, 1, 2))
    return ordered.view("<u4").reshape(n // BLOCK, groups, -1)
