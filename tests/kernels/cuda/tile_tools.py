"""Quantised matrices for tests, packed for GPUs (`backends/cuda/formats.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cuda.formats import WeightFormat, format_of_kind, padded_rows
from mlc_llm.backends.cuda.packing import pack, pack_floats
from mlc_llm.quantization.block_format import Grouped

Array = npt.NDArray[Any]
KINDS = ("Q4_0", "Q4_1", "q4f16", "Q8_0", "F16", "BF16", "F32")
FLOAT_BITS = {"F16": 11, "BF16": 8, "F32": 24}
"""Bits of a number."""


class Matrix(NamedTuple):
    """A packed matrix, and its values float64 [n, k], with the rows of the padding."""

    format: WeightFormat
    packed: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float64]


def random_matrix(kind: str, n: int, k: int, seed: int = 0) -> Matrix:
    random, fmt = np.random.default_rng(seed), format_of_kind(kind)
    if fmt.is_float:
        return _random_floats(kind, random.normal(size=(n, k)) * 0.05)
    q = random.integers(0, 1 << fmt.bits, (n, k)).astype(np.uint8)
    scale, minimum = random.normal(size=(2, n, k // 32)).astype(np.float16).astype(np.float32)
    given = minimum if fmt.has_minimum else None
    packed = pack(Grouped(q, fmt.bits, 32, scale, given, fmt.offset, half=True), fmt)
    wide = np.repeat(scale, 32, axis=1).astype(np.float64)
    low = np.repeat(minimum, 32, axis=1) if fmt.has_minimum else -fmt.offset * wide
    values = np.zeros((padded_rows(n), k))
    values[:n] = q * wide + low
    return Matrix(fmt, packed, values)


def _random_floats(kind: str, numbers: Array) -> Matrix:
    """Numbers as the type holds them. Those of a row have a size of their own."""
    fmt, (n, k) = format_of_kind(kind), numbers.shape
    sizes = 2.0 ** (np.arange(n) % 9 - 4)
    part, exponent = np.frexp(numbers * sizes[:, None])
    bits = FLOAT_BITS[kind]
    exact = np.ldexp(np.round(part * 2.0**bits), exponent - bits).astype(np.float32)
    exact = exact.astype(np.float16).astype(np.float32) if kind == "F16" else exact
    values = np.zeros((padded_rows(n), k))
    values[:n] = exact
    return Matrix(fmt, pack_floats(exact, fmt, kind), values)
