"""Quantised matrices for tests, packed for GPUs (`backends/cuda/formats.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cuda.formats import SPAN, WeightFormat, format_of_kind, padded_rows
from mlc_llm.backends.cuda.packing import pack, pack_floats
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.float8 import E4M3

Array = npt.NDArray[Any]
KINDS = (
    "Q4_0", "Q4_1", "q4f16", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "float8_e4m3", "zero_point4", "q4f32", "MXFP4", "NVFP4", "IQ4_XS", "IQ2_XS",
    "F16", "BF16", "F32",
)  # fmt: skip
"""One of each format."""
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
    if fmt.float8:
        q[(q & 127) == 127] = 126  # those are no numbers
    shape = (n, k // fmt.group)
    (scale, unit), (minimum, minimum_unit) = (_scales(fmt, random, shape) for _ in range(2))
    low, low_unit = (minimum, minimum_unit) if fmt.has_minimum else (None, None)
    half = fmt.scales == "float16"
    given = Grouped(q, fmt.bits, fmt.group, scale, low, fmt.offset, half, unit, low_unit)  # type: ignore[arg-type]
    wide = np.repeat(scale, fmt.group, axis=1).astype(np.float64)
    values = np.zeros((padded_rows(n), k))
    if fmt.float8:
        values[:n] = E4M3[q] * wide
    elif fmt.has_minimum:
        values[:n] = q * wide + np.repeat(minimum, fmt.group, axis=1)
    else:
        values[:n] = (q.astype(np.float64) - fmt.offset) * wide
    return Matrix(fmt, pack(given, fmt), values)


def _scales(
    fmt: WeightFormat, random: np.random.Generator, shape: tuple[int, int]
) -> tuple[Array, Array | None]:
    """Scales that the format holds, and their units."""
    if not fmt.has_units:
        found = random.normal(size=shape).astype(fmt.scales)
        return found.astype(np.float32), None
    of_unit = SPAN * fmt.groups
    unit = random.normal(size=(shape[0], shape[1] // of_unit), scale=0.02).astype(np.float16)
    unit[0, 0] = 0  # all of it is 0 then
    whole = random.integers(-128, 128, shape) * (np.repeat(unit, of_unit, axis=1) != 0)
    wide = np.repeat(unit, of_unit, axis=1).astype(np.float32)
    return (whole * wide).astype(np.float32), unit.astype(np.float32)


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
