"""The search for the scales that round a group of values best.

A row of candidates is measured by weighted squares of the errors. Source: `make_qkx2_quants`,
`make_qkx3_quants` and `make_qx_quants` in ggml-quants.c. Every operation is one of float32, in the
order of the C code, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.quantize_tools import first_largest, reciprocal, sums

_F = np.float32
Mask = npt.NDArray[np.bool_]
TINY = _F(1e-15)
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

    minima: Callable[[Floats, Floats, Candidates], Fit]
    """Groups [size, groups] and what an error of each value costs: the best fit of
    x ~ scale * q + minimum with q in 0 .. most. That of groups whose values are one and the same
    is not used."""
    signed: Callable[[Floats, Floats, Floats, list[np.float32], int], tuple[Floats, Floats]]
    """Groups [size, groups], what an error of each value costs, the largest value of each group,
    which is not 0, what the candidates divide by it, and `half`: the best fit of x ~ scale * q with
    q in -half .. half - 1, as scale and as the inverse of the step of its q."""


def limited(value: Floats, low: int, high: int) -> Floats:
    """Rounded, in place, to whole numbers of a range."""
    np.rint(value, out=value)
    return np.clip(value, _F(low), _F(high), out=value)


def fit_signed(x: Floats, weight: Floats, half: int, searches: Searches) -> tuple[Floats, Floats]:
    """The best fit of x ~ scale * q with q in -half .. half - 1: scale and 1 / the scale of its q,
    both [groups]; 0 for groups of zeros."""
    largest = first_largest(x)
    empty = np.abs(largest) < TINY
    largest[empty] = 1
    factors = [-(_F(half) + _F(0.1) * _F(i)) for i in (0, *range(-9, 0), *range(1, 10))]
    scale, inverse = searches.signed(x, weight, largest, factors, half)
    scale[empty] = inverse[empty] = 0
    return scale, inverse


def fit_factors(values: Floats, weight: Floats, most: int) -> tuple[Floats, Bytes]:
    """The best fit of values ~ scale * q with q in 0 .. most, for numbers of which none is
    negative: scale [B] and q [B, n]. values, weight: [B, n]. Source: `make_qp_quants`."""
    x, w = (np.ascontiguousarray(one.T) for one in (values, weight))
    largest = np.maximum(x.max(axis=0), 0)
    empty = largest < TINY
    largest[empty] = 1
    error = np.full_like(largest, np.inf)
    inverse = np.zeros_like(largest)
    for i in (0, *range(-4, 0), *range(1, 5)):
        now = (_F(0.1) * _F(i) + _F(most)) / largest
        difference = x - (_F(1) / now) * np.minimum(np.rint(now * x), _F(most))
        new = sums(w * difference * difference)
        better = new < error
        error, inverse = np.where(better, new, error), np.where(better, now, inverse)
    q: Floats = np.minimum(np.rint(inverse * x), _F(most)).astype(np.float32)
    scale = _descend(x, w, q, most)
    scale[empty], q[:, empty] = 0, 0
    return scale, np.ascontiguousarray(q.T).astype(np.int32).astype(np.uint8)


def _descend(x: Floats, w: Floats, q: Floats, most: int) -> Floats:
    """Change one q of each column at a time, in place, while that makes the fit better. Returns
    the scale of the fit."""
    sum_xl, sum_l2 = sums(w * x * q), sums(w * q * q)
    for _ in range(5):
        for i in range(len(x)):
            xl, l2 = sum_xl - w[i] * x[i] * q[i], sum_l2 - w[i] * q[i] * q[i]
            solved = (xl > 0) & (l2 > 0)
            new = np.rint(x[i] * l2 / np.where(solved, xl, 1))
            new = np.minimum(new, _F(most))
            xl, l2 = xl + w[i] * x[i] * new, l2 + w[i] * new * new
            better = solved & (new != q[i]) & (xl * xl * sum_l2 > sum_xl * sum_xl * l2)
            q[i] = np.where(better, new, q[i])
            sum_xl, sum_l2 = np.where(better, xl, sum_xl), np.where(better, l2, sum_l2)
    scale: Floats = np.divide(sum_xl, sum_l2, out=np.zeros_like(sum_xl), where=sum_l2 > 0)
    return scale


def _search_minima(x: Floats, weight: Floats, candidates: Candidates) -> Fit:
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
        limited(self._q, 0, self._most)

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


def _search_signed(
    x: Floats, weight: Floats, largest: Floats, factors: list[np.float32], half: int
) -> tuple[Floats, Floats]:
    weighted = weight * x
    best = scale = inverse = np.zeros_like(largest)
    q, a = np.empty((2, *x.shape), np.float32)
    for i, factor in enumerate(factors):
        now = factor / largest
        limited(np.multiply(x, now, out=q), -half, half - 1)
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


NUMPY = Searches(_search_minima, _search_signed)
