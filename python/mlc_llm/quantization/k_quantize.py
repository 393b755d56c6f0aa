"""Floats as ggml's K types Q4_K, Q5_K and Q6_K: blocks of 256 values with two levels of scales.

Each group's scale (and minimum) is the best of a row of candidates, measured by weighted squares of
the errors. Source: `quantize_row_q4_K_ref`, `quantize_row_q5_K_ref`, `quantize_row_q6_K_ref`,
`make_qkx2_quants` and `make_qx_quants` in ggml-quants.c. Every operation is one of float32, in the
order of the C code, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.quantize_tools import first_largest, halves, reciprocal, sums

BLOCK = 256
_F = np.float32
Mask = npt.NDArray[np.bool_]
_TINY = _F(1e-15)
"""Groups whose values are all smaller count as zero (GROUP_MAX_EPS)."""


class Candidates(NamedTuple):
    """The steps of the search: group span / (most + first + step * i) for i = 0 .. last."""

    most: int
    first: float
    last: int
    step: float = 0.1

    def factors(self) -> list[np.float32]:
        return [
            _F(_F(self.first) + _F(self.step) * _F(i)) + _F(self.most) for i in range(self.last + 1)
        ]


class Fit(NamedTuple):
    """What a search has found, each [groups]. q = round(inverse * (x - low))."""

    scale: Floats
    minimum: Floats
    """Not positive: the value of q = 0."""
    inverse: Floats
    low: Floats


class Searches(NamedTuple):
    """How the best scales are found. Whatever does it gives the same bits."""

    minima: Callable[[Floats, Candidates], Fit]
    """Groups [32, groups]; the fit of groups whose values are one and the same is not used."""
    signed: Callable[[Floats, Floats, list[np.float32]], tuple[Floats, Floats]]
    """Groups [16, groups], the largest value of each, which is not 0, and what the candidates
    divide by it: the best fit of x ~ scale * q with q in -32 .. 31, as scale and as the inverse of
    the step of its q."""


def q4_k(x: Floats, searches: Searches | None = None) -> list[Bytes]:
    """Columns [256, B] -> parts of the blocks."""
    q, head = _with_minima(x, Candidates(15, -1.0, 20), searches or NUMPY)
    pairs = q.reshape(-1, 4, 2, 32)
    return [*head, (pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))).reshape(-1, 128)]


def q5_k(x: Floats, searches: Searches | None = None) -> list[Bytes]:
    """Columns [256, B] -> parts of the blocks."""
    q, head = _with_minima(x, Candidates(31, -0.5, 15), searches or NUMPY)
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
    x: Floats, candidates: Candidates, searches: Searches
) -> tuple[Bytes, list[Bytes]]:
    """Values [B, 8, 32], and the head of the blocks: d, dmin, scales."""
    groups = _groups(x, 32)
    fit = _with_flat(groups, searches.minima(groups, candidates))
    scale, minimum = fit.scale.reshape(-1, 8), -fit.minimum.reshape(-1, 8)
    factors = [_six_bits(scale), _six_bits(minimum)]
    units = [halves(np.maximum(one.max(axis=1), 0) / _F(63)) for one in (scale, minimum)]
    step, low = (_times(u, f) for u, f in zip(units, factors, strict=True))
    used = step != 0
    divisor: Floats = np.where(used, step, 1).astype(np.float32)
    value: Floats = (groups + low) / divisor
    value = np.where(used, value, (groups - fit.low) * fit.inverse)
    q = _limited(value, 0, candidates.most).astype(np.uint8)
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


def _limited(value: Floats, low: int, high: int) -> Floats:
    """Rounded, in place, to whole numbers of a range."""
    np.rint(value, out=value)
    return np.clip(value, _F(low), _F(high), out=value)


def _with_flat(x: Floats, fit: Fit) -> Fit:
    """The fit, changed in place, with groups that are one value, or 0 and less, all over."""
    low = np.minimum(x.min(axis=0), 0)
    flat = x.max(axis=0) == low
    fit.scale[flat] = fit.inverse[flat] = 0
    fit.minimum[flat] = low[flat]
    return fit


def _search(x: Floats, candidates: Candidates) -> Fit:
    """The best fit of x ~ scale * q + minimum with q in 0 .. most."""
    weight = np.sqrt(sums(x * x) / _F(len(x))) + np.abs(x)
    low = np.minimum(x.min(axis=0), 0)
    high, flat = x.max(axis=0), x.max(axis=0) == low
    high = np.where(flat, low + 1, high)  # any span; the fit is not used
    inverse = _F(candidates.most) / (high - low)
    search = _Search(x, weight, candidates.most)
    search.round(low, inverse)
    fit = Fit(reciprocal(inverse), low.copy(), inverse, low.copy())
    error = search.error(fit.scale, low)
    for factor in candidates.factors():
        low = fit.minimum.copy()  # the C code goes on from the best minimum so far
        inverse = factor / (high - low)
        search.round(low, inverse)
        scale, minimum, solved = search.least_squares()
        new = search.error(scale, minimum)
        better = solved & (new < error)
        error[better] = new[better]
        for old, now in zip(fit, (scale, minimum, inverse, low), strict=True):
            old[better] = now[better]
    return fit


class _Search:
    """Measures ways to round x. It keeps its large arrays: new ones would cost as much as the sums.

    weight: of each value of x in errors.
    """

    def __init__(self, x: Floats, weight: Floats, most: int) -> None:
        self._x, self._weight, self._most = x, weight, most
        self._q, self._a, self._b = np.empty((3, *x.shape), np.float32)
        self._sum_w, self._sum_x = sums(weight), sums(weight * x)

    def round(self, low: Floats, inverse: Floats) -> None:
        """Set q to round(inverse * (x - low)), in 0 .. most."""
        np.subtract(self._x, low, out=self._q)
        np.multiply(self._q, inverse, out=self._q)
        _limited(self._q, 0, self._most)

    def least_squares(self) -> tuple[Floats, Floats, Mask]:
        """The best scale and minimum for q, and where there is a solution."""
        q, a, b, sum_w, sum_x = self._q, self._a, self._b, self._sum_w, self._sum_x
        sum_l = sums(np.multiply(self._weight, q, out=a))
        sum_l2 = sums(np.multiply(a, q, out=b))
        sum_xl = sums(np.multiply(a, self._x, out=a))
        det = sum_w * sum_l2 - sum_l * sum_l
        solved = det > 0
        safe: Floats = np.where(solved, det, 1).astype(np.float32)
        scale: Floats = np.divide(sum_w * sum_xl - sum_x * sum_l, safe)
        minimum: Floats = np.divide(sum_l2 * sum_x - sum_l * sum_xl, safe)
        above = solved & (minimum > 0)
        scale[above] = sum_xl[above] / sum_l2[above]
        minimum[above] = 0
        return scale, minimum, solved

    def error(self, scale: Floats, minimum: Floats) -> Floats:
        """[groups]: the weighted squares of scale * q + minimum - x."""
        difference = np.multiply(scale, self._q, out=self._a)
        difference += minimum
        difference -= self._x
        difference *= difference
        difference *= self._weight
        return sums(difference)


def q6_k(x: Floats, searches: Searches | None = None) -> list[Bytes]:
    """Columns [256, B] -> parts of the blocks."""
    groups = _groups(x, 16)
    scale, inverse = _signed_fit(groups, searches or NUMPY)
    by_block = scale.reshape(-1, 16)
    largest = first_largest(np.ascontiguousarray(by_block.T))
    empty = np.abs(largest) < _TINY
    factor = _F(-128) / np.where(empty, 1, largest)
    unit = halves(np.where(empty, 0, reciprocal(factor)))
    factors = np.minimum(np.rint(factor[:, None] * by_block), 127).astype(np.int8)
    factors[empty] = 0
    step = (unit.view("<f2").astype(np.float32) * factors.astype(np.float32)).reshape(-1)
    used = step != 0
    value = np.where(used, groups / np.where(used, step, 1), groups * inverse)
    value[:, inverse == 0] = -32  # as the C code has it; the step is 0 there
    q = (_limited(value, -32, 31) + 32).astype(np.uint8).T.reshape(-1, 2, 4, 32)
    q[empty] = 0
    low, high = q & np.uint8(15), q >> np.uint8(4)
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs = low[:, :, :2] | (low[:, :, 2:] << np.uint8(4))
    tops = np.bitwise_or.reduce(high << places, axis=2)
    return [pairs.reshape(-1, 128), tops.reshape(-1, 64), factors.view(np.uint8), unit]


def _signed_fit(x: Floats, searches: Searches) -> tuple[Floats, Floats]:
    """The best fit of x ~ scale * q with q in -32 .. 31: scale and 1 / the scale of its q, both
    [groups]; 0 for groups of zeros."""
    largest = first_largest(x)
    empty = np.abs(largest) < _TINY
    largest[empty] = 1
    factors = [-(_F(32) + _F(0.1) * _F(i)) for i in (0, *range(-9, 0), *range(1, 10))]
    scale, inverse = searches.signed(x, largest, factors)
    scale[empty] = inverse[empty] = 0
    return scale, inverse


def _search_signed(x: Floats, largest: Floats, factors: list[np.float32]) -> tuple[Floats, Floats]:
    weight = x * x
    weighted = weight * x
    best = scale = inverse = np.zeros_like(largest)
    q, a = np.empty((2, *x.shape), np.float32)
    for i, factor in enumerate(factors):
        now = factor / largest
        _limited(np.multiply(x, now, out=q), -32, 31)
        sum_xl = sums(np.multiply(weighted, q, out=a))
        sum_l2 = sums(np.multiply(np.multiply(weight, q, out=a), q, out=a))
        fitted = np.divide(sum_xl, sum_l2, out=np.zeros_like(sum_xl), where=sum_l2 != 0)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        if i == 0:
            better[:] = True
        scale = np.where(better, fitted, scale)
        best = np.where(better, fitted * sum_xl, best)
        inverse = np.where(better, now, inverse)
    return scale, inverse


NUMPY = Searches(_search, _search_signed)
