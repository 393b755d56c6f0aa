"""Figures of many requests in little memory: histograms, and the row of a table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from mlc_llm.bench.client import Result

PER_DECADE = 100
"""Buckets of a histogram for a factor of ten: a percentile is exact to about 1 %."""
LEAST_S = 1e-6


class Histogram:
    """Durations in seconds. Its size depends on their range alone."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.sum = 0.0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[math.floor(PER_DECADE * math.log10(max(seconds, LEAST_S)))] += 1
        self.count += 1
        self.sum += seconds
        self.most = max(self.most, seconds)

    def percentile(self, share: float) -> float | None:
        """The duration that `share` (0 to 1) of them do not exceed. None without any."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return float(min(10 ** ((bucket + 0.5) / PER_DECADE), self.most))
        return None

    @property
    def mean(self) -> float | None:
        """None without any."""
        return self.sum / self.count if self.count else None


@dataclass
class Point:
    """One row: a concurrency or a rate, and what was measured there."""

    load: str
    """`concurrency` or `rate`."""
    value: float
    ttft: Histogram = field(default_factory=Histogram)
    gap: Histogram = field(default_factory=Histogram)
    total: Histogram = field(default_factory=Histogram)
    errors: Counter[str] = field(default_factory=Counter)
    done: int = 0
    uncounted: int = 0
    """Answers whose server told no tokens."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    """From the first request to the end of the last answer."""
    late: Histogram = field(default_factory=Histogram)
    """With a rate: how much later than planned requests were sent, because this side was busy."""

    def add(self, result: Result) -> None:
        """Count one request."""
        if result.error is not None:
            self.errors[result.error] += 1
            return
        self.done += 1
        self.uncounted += not result.is_counted
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.answer_tokens += result.answer_tokens
        self.total.add(result.total)
        if result.ttft is not None:
            self.ttft.add(result.ttft)
        for gap in result.gaps:
            self.gap.add(gap)

    def row(self) -> dict[str, object]:
        """The figures by name. Times are in milliseconds. None: not measured."""
        found: dict[str, object] = {
            "load": self.load,
            "value": self.value,
            "requests": self.done + sum(self.errors.values()),
            "errors": sum(self.errors.values()),
            "seconds": round(self.seconds, 6),
            "answers_per_s": self._per_second(self.done),
            "answer_tokens_per_s": self._per_second(self.answer_tokens, counted=True),
            "prompt_tokens_per_s": self._per_second(self.prompt_tokens, counted=True),
            "cached_share": self._cached_share(),
        }
        for name, times in (("ttft", self.ttft), ("gap", self.gap), ("total", self.total)):
            found[f"{name}_mean_ms"] = _ms(times.mean)
            for percent in (50, 90, 99):
                found[f"{name}_p{percent}_ms"] = _ms(times.percentile(percent / 100))
        found["late_p99_ms"] = _ms(self.late.percentile(0.99))
        kinds = sorted(self.errors.items())
        return {**found, "error_kinds": "; ".join(f"{kind}: {count}" for kind, count in kinds)}

    def _per_second(self, count: int, *, counted: bool = False) -> float | None:
        if not self.seconds or (counted and (self.uncounted or not self.done)):
            return None
        return round(count / self.seconds, 2)

    def _cached_share(self) -> float | None:
        return round(self.cached_tokens / self.prompt_tokens, 3) if self.prompt_tokens else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
