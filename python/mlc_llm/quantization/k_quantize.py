"""Floats as ggml's K types Q4_K, Q5_K and Q6_K: blocks of 256 values with two levels of scales.

Each group's scale (and minimum) is the best of a row of candidates, measured by weighted squares of
the errors. With the importance of columns an error counts by it, more candidates are tried, and the
scales of scales are searched for as well. Source: `quantize_row_q4_K_ref`, `quantize_row_q4_K_impl`
and the same of Q5_K and Q6_K in ggml-quants.c. Every operation is one of float32, in the order of
the C code, so the bits are the same.
"""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.quantize_tools import first_largest, halves, reciprocal, sums
from mlc_llm.quantization.scale_search import (
    NUMPY,
    TINY,
    Candidates,
    Fit,
    Searches,
    fit_factors,
    fit_signed,
    limited,
)

BLOCK = 256
_F = np.float32


def q4_k(x: Floats, searches: Searches = NUMPY, importance: Floats | None = None) -> list[Bytes]:
    """Columns [256, B] -> parts of the blocks. importance: of each value, as x."""
    q, head = _with_minima(x, Candidates(15, -1.0, 20), searches, importance)
    pairs = q.reshape(-1, 4, 2, 32)
    return [*head, (pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))).reshape(-1, 128)]


def q5_k(x: Floats, searches: Searches = NUMPY, importance: Floats | None = None) -> list[Bytes]:
    """As `q4_k`."""
    q, head = _with_minima(x, Candidates(31, -0.5, 15), searches, importance)
    places = np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce((q >> np.uint8(4)) << places, axis=1)
    pairs = (q & np.uint8(15)).reshape(-1, 4, 2, 32)
    low = pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))
    return [*head, high, low.reshape(-1, 128)]


def _groups(x: Floats, size: int) -> Floats:
    """Columns [256, B] -> columns [size, B * 256 / size], the groups of a block side by side."""
    split = x.reshape(BLOCK // size, size, -1).transpose(1, 2, 0)
    return np.ascontiguousarray(split).reshape(size, -1)


def _with_minima(
    x: Floats, candidates: Candidates, searches: Searches, importance: Floats | None
) -> tuple[Bytes, list[Bytes]]:
    """Values [B, 8, 32], and the head of the blocks: d, dmin, scales."""
    groups = _groups(x, 32)
    if importance is None:
        weight = np.sqrt(sums(groups * groups) / _F(32)) + np.abs(groups)
    else:
        candidates = Candidates(candidates.most, -0.9, 36, 0.05)
        squares = x * x
        spread = _F(2) * sums(squares) / _F(BLOCK)
        weight = _groups(importance * np.sqrt(spread + squares), 32)
    fit = _with_flat(groups, searches.minima(groups, weight, candidates))
    scale, minimum = fit.scale.reshape(-1, 8), -fit.minimum.reshape(-1, 8)
    if importance is None:
        factors = [_six_bits(scale), _six_bits(minimum)]
        units = [halves(np.maximum(one.max(axis=1), 0) / _F(63)) for one in (scale, minimum)]
    else:
        total = sums(weight).reshape(-1, 8)
        fitted = [fit_factors(one, total, 63) for one in (scale, minimum)]
        units, factors = [halves(unit) for unit, _ in fitted], [one for _, one in fitted]
    step, low = (_times(u, f) for u, f in zip(units, factors, strict=True))
    used = step != 0
    divisor: Floats = np.where(used, step, 1).astype(np.float32)
    value: Floats = (groups + low) / divisor
    value = np.where(used, value, (groups - fit.low) * fit.inverse)
    q = limited(value, 0, candidates.most).astype(np.uint8)
    return q.T.reshape(-1, 8, 32), [*units, _packed_factors(*factors)]


def _six_bits(x: Floats) -> Bytes:
    """Factors [B, 8] in 0 .. 63, for numbers [B, 8] of which none is negative."""
    most = np.maximum(x.max(axis=1, keepdims=True), 0)
    inverse = np.divide(_F(63), most, out=np.zeros_like(most), where=most > 0)
    factors: Bytes = np.rint(inverse * x).astype(np.int32).astype(np.uint8)
    return np.minimum(factors, 63, out=factors)


def _times(units: Bytes, factors: Bytes) -> Floats:
    """[groups]: the scales that the block stands for."""
    wide = units.view("<f2").astype(np.float32)
    return (wide * factors.astype(np.float32)).reshape(-1)


def _packed_factors(scale: Bytes, low: Bytes) -> Bytes:
    """Two lots of [B, 8] numbers of 6 bits as [B, 12]."""
    six, four = np.uint8(6), np.uint8(4)
    return np.concatenate(
        [
            scale[:, :4] | (scale[:, 4:] >> four << six),
            low[:, :4] | (low[:, 4:] >> four << six),
            (scale[:, 4:] & np.uint8(15)) | ((low[:, 4:] & np.uint8(15)) << four),
        ],
        axis=1,
    )


def _with_flat(x: Floats, fit: Fit) -> Fit:
    """The fit, changed in place, with groups that are one value, or 0 and less, all over."""
    low = np.minimum(x.min(axis=0), 0)
    flat = x.max(axis=0) == low
    fit.scale[flat] = fit.inverse[flat] = 0
    fit.minimum[flat] = low[flat]
    return fit


def q6_k(x: Floats, searches: Searches = NUMPY, importance: Floats | None = None) -> list[Bytes]:
    """As `q4_k`."""
    groups = _groups(x, 16)
    weight = groups * groups if importance is None else _groups(importance, 16)
    scale, inverse = fit_signed(groups, weight, 32, searches)
    by_block = scale.reshape(-1, 16)
    largest = first_largest(np.ascontiguousarray(by_block.T))
    empty = np.abs(largest) < TINY
    factor = _F(-128) / np.where(empty, 1, largest)
    unit = halves(np.where(empty, 0, reciprocal(factor)))
    factors = np.minimum(np.rint(factor[:, None] * by_block), 127).astype(np.int8)
    factors[empty] = 0
    step = (unit.view("<f2").astype(np.float32) * factors.astype(np.float32)).reshape(-1)
    used = step != 0
    value = np.where(used, groups / np.where(used, step, 1), groups * inverse)
    value[:, inverse == 0] = -32  # as the C code has it; the step is 0 there
    q = (limited(value, -32, 31) + 32).astype(np.uint8).T.reshape(-1, 2, 4, 32)
    q[empty] = 0
    low, high = q & np.uint8(15), q >> np.uint8(4)
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs = low[:, :, :2] | (low[:, :, 2:] << np.uint8(4))
    tops = np.bitwise_or.reduce(high << places, axis=2)
    return [pairs.reshape(-1, 128), tops.reshape(-1, 64), factors.view(np.uint8), unit]
