"""Which tokens sampling may choose, in float64 with a sort.

Where float32 sums may fall on either side of a cut, both tokens are right; everywhere else there is
one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
TOLERANCE = 2e-5
"""Relative error of a weight or a sum of weights."""


@dataclass(frozen=True)
class Options:
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0


def kept(logits: Array, o: Options, tolerance: float = 0.0) -> Array:
    """Weights float64 with those below a cut set to 0; tolerance > 0 lowers every cut a little."""
    x = logits.astype(np.float64)
    w = np.exp((x - x.max()) / o.temperature)
    ordered = np.sort(w)[::-1]
    floor = 0.0
    if 0 < o.top_k < len(w):
        floor = ordered[o.top_k - 1]
    if o.top_p < 1:
        inside = ordered[ordered >= floor]
        reached = np.searchsorted(np.cumsum(inside), o.top_p * inside.sum() * (1 - tolerance))
        floor = inside[min(reached, len(inside) - 1)]
    floor = min(1.0, max(floor, o.min_p)) * (1 - tolerance)
    return np.where(w >= floor, w, 0)


def right(logits: Array, o: Options, uniform: float) -> set[int]:
    """The tokens that the inverse CDF may give, rounding allowed for."""
    answers = set()
    for tolerance in (TOLERANCE, -TOLERANCE, 0.0):
        w = kept(logits, o, tolerance)
        ends = np.cumsum(w)
        wanted, slack = uniform * ends[-1], TOLERANCE * ends[-1]
        low = ends - w
        answers |= set(np.flatnonzero((w > 0) & (low - slack <= wanted) & (wanted <= ends + slack)))
    return answers
