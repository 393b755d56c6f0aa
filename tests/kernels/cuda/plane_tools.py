"""Rows in planes of float16 (`kernels/cuda/planes.py`), made and read with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.kernels.cuda.planes import LARGEST_EXPONENT, SUMMED, row_words

Array = npt.NDArray[Any]


def as_planes(x: Array) -> npt.NDArray[np.uint32]:
    """Rows float32 [m, k] as a product reads them."""
    m, k = x.shape
    exponent = np.frexp(np.maximum(np.abs(x).max(axis=1), np.float32(2.0**-111)))[1] - 1
    scale = np.ldexp(np.float32(1), exponent - LARGEST_EXPONENT).astype(np.float32)
    v = x / scale[:, None]
    high = v.astype(np.float16)
    low = (v - high.astype(np.float32)).astype(np.float16)
    sums = v.reshape(m, -1, SUMMED).sum(axis=2, dtype=np.float32)
    rows = np.zeros((m, row_words(k)), np.uint32)
    for start, part in ((0, high), (k // 2, low), (k, sums), (k + k // SUMMED, scale[:, None])):
        words = np.ascontiguousarray(part).view(np.uint32)
        rows[:, start : start + words.shape[1]] = words
    return rows


def scales_of(rows: Array, k: int) -> npt.NDArray[np.float32]:
    """[m, 1]."""
    found = k + k // SUMMED
    return np.ascontiguousarray(rows[:, found : found + 1]).view(np.float32)


def numbers_of(rows: Array, k: int) -> npt.NDArray[np.float64]:
    """What the rows stand for, [m, k]."""
    halves = np.ascontiguousarray(rows[:, :k]).view(np.float16).astype(np.float64)
    numbers: npt.NDArray[np.float64] = (halves[:, :k] + halves[:, k:]) * scales_of(rows, k)
    return numbers


def sums_of(rows: Array, k: int) -> npt.NDArray[np.float64]:
    """The sums of the groups, [m, k / SUMMED]."""
    sums = np.ascontiguousarray(rows[:, k : k + k // SUMMED]).view(np.float32)
    return sums.astype(np.float64) * scales_of(rows, k)
