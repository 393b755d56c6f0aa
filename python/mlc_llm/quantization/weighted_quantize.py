"""Q4_0, Q4_1, Q5_0 and Q5_1 whose scales are chosen by the importance of columns.

An error of a value counts by the importance of its column, and more where the value is large. Of
several scales each block gets the one whose errors count least. Source: `quantize_row_q4_0_impl`
and the same of the other types in ggml-quants.c. Every operation is one of float32, in the order of
the C code, so the bits are the same.
"""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.quantize_tools import sums
from mlc_llm.quantization.scale_search import NUMPY, Candidates, Searches, fit_signed, limited

BLOCK = 32
_F = np.float32


def block_weights(rows: Floats, importance: Floats) -> Floats:
    """What an error of each value costs, [blocks, 32]. rows [rows, columns]; importance
    [columns]."""
    spread = sums(np.square(np.ascontiguousarray(rows.T))) / _F(rows.shape[1])
    weight: Floats = importance * np.sqrt(spread[:, None] + rows * rows)
    return weight.reshape(-1, BLOCK)


def best_signed(
    x: Floats, weight: Floats, half: int, searches: Searches = NUMPY
) -> tuple[Floats, Bytes]:
    """Scale [B] and values [B, 32] in 0 .. 2 half - 1, for value = scale * (q - half). x and
    weight: columns [32, B]."""
    scale, inverse = fit_signed(x, weight, half, searches)
    values = (limited(x * inverse, -half, half - 1) + _F(half)).astype(np.uint8)
    values[:, inverse == 0] = 0
    return scale, values.T


def best_with_minimum(
    x: Floats, weight: Floats, most: int, searches: Searches = NUMPY
) -> tuple[Floats, Floats, Bytes]:
    """Scale [B], minimum [B] and values [B, 32] in 0 .. most. x and weight: columns [32, B]."""
    found = searches.minima(x, weight, Candidates(most, -0.9, 36, 0.05))
    first = x[x.argmin(axis=0), np.arange(x.shape[1])]  # the C code keeps the sign of a zero
    lowest = np.where(first > 0, 0, first)
    flat = x.max(axis=0) <= lowest
    scale, minimum = np.where(flat, 0, found.scale), np.where(flat, lowest, found.minimum)
    values = limited((x - found.low) * found.inverse, 0, most).astype(np.uint8)
    values[:, flat] = 0
    return scale.astype(np.float32), minimum.astype(np.float32), values.T
