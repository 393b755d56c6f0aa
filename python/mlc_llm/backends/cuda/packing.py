"""Packed weight matrices for GPUs, made without losing a bit; `formats.py` describes them.

Rows are padded to a multiple of 32 with zero scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cuda.formats import BLOCK, GROUP, WeightFormat, padded_rows
from mlc_llm.quantization.block_format import Grouped

Array = npt.NDArray[Any]


def pack(grouped: Grouped, fmt: WeightFormat) -> npt.NDArray[np.uint32]:
    """The tensor of quantised values; `fmt` comes from `format_of_kind`."""
    assert (grouped.bits, grouped.group) == (fmt.bits, GROUP), "format of another kind"
    assert grouped.half, "scales do not fit float16"
    assert (grouped.minimum is not None) == fmt.has_minimum
    parts = [_words(_padded(grouped.q), fmt)]
    for scale in (grouped.scale, grouped.minimum):
        if scale is not None:
            parts.append(_scales(_padded(scale)))
    return np.concatenate(parts, axis=2)


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
