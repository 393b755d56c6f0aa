"""Packed weight matrices for GPUs, made without losing a bit; `formats.py` describes them.

Rows are padded to a multiple of 32 with zero scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat, padded_rows
from mlc_llm.errors import UnsupportedModel
from mlc_llm.quantization.block_format import Grouped

Array = npt.NDArray[Any]
LARGEST_EXPONENT = 15
"""The numbers of a group are below 2^15 times its scale."""
LEAST_EXPONENT = 24
"""2^-24 is the least float16."""


def pack(grouped: Grouped, fmt: WeightFormat) -> npt.NDArray[np.uint32]:
    """The tensor of quantised values; `fmt` comes from `format_of_kind`."""
    assert grouped.bits <= fmt.bits and grouped.group == GROUP, "format of another kind"
    assert grouped.half, "scales do not fit float16"
    assert (grouped.minimum is not None) == fmt.has_minimum
    parts = [_words(_padded(grouped.q), fmt)]
    for scale in (grouped.scale, grouped.minimum):
        if scale is not None:
            parts.append(_scales(_padded(scale)))
    return np.concatenate(parts, axis=2)


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
    return np.concatenate([*words, _scales(scale)], axis=2)


def _float_words(halves: npt.NDArray[np.float16]) -> npt.NDArray[np.uint32]:
    """uint32 [n / 32, k / 32, words] of a plane [n, k]."""
    n, k = halves.shape
    # half, h and g of a row; t, step, pair and c of a column.
    split = halves.view(np.uint16).reshape(n // BLOCK, 2, 2, 8, k // GROUP, 4, 2, 2, 2)
    ordered = np.ascontiguousarray(split.transpose(0, 4, 1, 6, 3, 5, 7, 2, 8))
    return ordered.view("<u4").reshape(n // BLOCK, k // GROUP, -1)


def _padded(rows: Array) -> Array:
    """The rows and zeros behind them, up to a whole tile."""
    return np.pad(rows, ((0, padded_rows(len(rows)) - len(rows)), (0, 0)))


def _words(q: Array, fmt: WeightFormat) -> npt.NDArray[np.uint32]:
    """uint32 [n / 32, k / 32, words] of values [n, k]."""
    n, k = q.shape
    # half, h and g of a row; t, step, pair and c of a column.
    split = q.reshape(n // BLOCK, 2, 2, 8, k // GROUP, 4, 2, 2, 2).astype(np.uint32)
    h, c = np.arange(2, dtype=np.uint32)[:, None], np.arange(2, dtype=np.uint32)
    if fmt.bits == 8:
        ordered = split.transpose(0, 4, 7, 3, 5, 1, 6, 2, 8) << (8 * h + 16 * c)
    else:
        pair = np.arange(2, dtype=np.uint32)[:, None, None]
        ordered = split.transpose(0, 4, 3, 5, 1, 6, 7, 2, 8) << (4 * (2 * pair + h) + 16 * c)
    values = ordered.reshape(n // BLOCK, k // GROUP, fmt.scale_start, -1)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(values, axis=-1)
    return words


def _scales(scale: Array) -> npt.NDArray[np.uint32]:
    """uint32 [n / 32, k / 32, words] of scales [n, k / 32]."""
    n, groups = scale.shape
    split = scale.astype(np.float16).reshape(n // BLOCK, 2, 2, 8, groups)
    ordered = np.ascontiguousarray(split.transpose(0, 4, 3, 1, 2))
    return ordered.view("<u4").reshape(n // BLOCK, groups, -1)
