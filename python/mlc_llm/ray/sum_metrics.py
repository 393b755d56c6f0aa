"""The metrics of several replicas as those of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlc_llm.serve.serving_page import SERVING

ANSWERING = "replicas_answering"
"""How many replicas are in the sum."""
MEANS = ("kv_cache_usage",)
"""Parts of a whole: their mean says more than their sum."""
SUMS = "_sum"


def summed(replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, histograms and gauges are added up. Of the engine's own numbers, speeds and those of
    the last request are left out, because their sum means nothing."""
    found: dict[str, Any] = {ANSWERING: len(replicas)}
    for one in replicas:
        for name, value in one.items():
            if name == SERVING or name.endswith(SUMS):
                found[name] = value if name not in found else _added(found[name], value)
    if replicas:
        serving = found[SERVING]
        means = {name: serving[name] / len(replicas) for name in MEANS}
        found[SERVING] = {**serving, **means}
    return found


def _added(first: Any, second: Any) -> Any:
    """Two numbers, or two mappings of the same shape, or the buckets of two histograms."""
    if isinstance(first, Mapping):
        return {
            name: _buckets(value, second[name])
            if name == "buckets"
            else _added(value, second[name])
            for name, value in first.items()
        }
    return first + second


def _buckets(first: Sequence[Any], second: Sequence[Any]) -> list[list[Any]]:
    """Pairs of a bound and a count; all replicas have the same bounds."""
    pairs = zip(first, second, strict=True)
    return [[bound, count + other] for (bound, count), (_, other) in pairs]
