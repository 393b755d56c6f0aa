"""A histogram as Prometheus knows it: how many values lay below each bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
SECONDS = tuple(float(f"{step}e{power}") for power in range(-3, 3) for step in _STEPS)
"""From a millisecond to 700 seconds. A bound is at most 1.7 times the one before it."""
SHORT_SECONDS = tuple(float(f"{step}e{power}") for power in range(-4, 1) for step in _STEPS)
"""For what happens between two tokens."""
TOKENS = tuple(float(2**power) for power in range(21))


class Histogram:
    """Counts values by bounds, which rise. A value equal to a bound lies below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values between a bound and the one before it; the last ones lie above all bounds."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value that was seen so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def asdict(self) -> dict[str, object]:
        """`count`, `sum`, and `buckets`: for each bound how many values lie below it."""
        below, seen = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            below.append([bound, seen])
        return {"count": sum(self.counts), "sum": self.sum, "buckets": below}
