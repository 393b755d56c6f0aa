"""Q4_0 and Q5_0 whose scales are chosen by the importance of columns.

An error of a value counts by the importance of its column, and more where the value is large. Of
nineteen scales each block gets the one whose errors count least. Source: `quantize_row_q4_0_impl`,
`quantize_row_q5_0_impl` and `make_qx_quants` in ggml-quants.c. Every operation is one of float32,
in the order of the C code, so the bits are the same.
"""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.quantize_tools import first_largest, sums

HALVES = {"Q4_0": 8, "Q5_0": 16}
"""Tensor types that importance can choose -> half of the number of their values."""
BLOCK = 32
_F = np.float32
_TINY = _F(1e-15)
"""Blocks whose values are all smaller count as zero (GROUP_MAX_EPS)."""


def block_weights(rows: Floats, importance: Floats) -> Floats:
    """What an error of each value costs, [blocks, 32]. rows [rows, columns]; importance
    [columns]."""
    squares = np.ascontiguousarray(rows.T)
    squares *= squares
    spread = sums(squares) / _F(rows.shape[1])
    weight: Floats = importance * np.sqrt(spread[:, None] + rows * rows)
    return weight.reshape(-1, BLOCK)


def best_signed(x: Floats, weight: Floats, half: int) -> tuple[Floats, Bytes]:
    """Scale [B] and values [B, 32] in 0 .. 2 half - 1, for value = scale * (q - half). x and
    weight: columns [32, B]."""
    largest = first_largest(x)
    empty = np.abs(largest) < _TINY
    largest[empty] = 1
    weighted = weight * x
    best = scale = inverse = np.zeros_like(largest)
    q, a = np.empty((2, *x.shape), np.float32)
    for i in (0, *range(-9, 0), *range(1, 10)):
        now = -(_F(half) + _F(0.1) * _F(i)) / largest
        _round(x, now, half, q)
        sum_xl = sums(np.multiply(weighted, q, out=a))
        sum_l2 = sums(np.multiply(np.multiply(weight, q, out=a), q, out=a))
        fitted = np.divide(sum_xl, sum_l2, out=np.zeros_like(sum_xl), where=sum_l2 != 0)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        if i == 0:
            better[:] = True
        scale = np.where(better, fitted, scale)
        best = np.where(better, fitted * sum_xl, best)
        inverse = np.where(better, now, inverse)
    values = (_round(x, inverse, half, q) + _F(half)).astype(np.uint8).T
    scale[empty], values[empty] = 0, 0
    return scale, values


def _round(x: Floats, inverse: Floats, half: int, out: Floats) -> Floats:
    """Whole numbers in -half .. half - 1."""
    np.rint(np.multiply(x, inverse, out=out), out=out)
    return np.clip(out, _F(-half), _F(half - 1), out=out)
