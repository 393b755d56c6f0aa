"""Nested numbers as text of Prometheus, format 0.0.4 (prometheus.io, "Exposition formats").

A key `mean{batch_size=1}` inside `decode_time_by_batch_size` becomes
`decode_time_by_batch_size_mean{batch_size="1"}`. A list becomes one sample for each place, with the
label `step`. Texts, flags and nulls are no samples: they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_KEY = re.compile(r"(?P<name>[^{]*)(?:\{(?P<labels>.*)\})?\Z", re.DOTALL)
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_COUNTER_NAMES = ("_sum", "_count", "_tokens", "_total")

Sample = tuple[str, dict[str, str], float]


def prometheus_text(metrics: Mapping[str, object]) -> str:
    """One TYPE line for each name, followed by its samples. The text ends with a newline."""
    families: dict[str, dict[str, str]] = {}
    for name, labels, value in _samples("", metrics):
        families.setdefault(name, {})[_label_text(labels)] = _number(value)
    lines: list[str] = []
    for name, samples in families.items():
        lines.append(f"# TYPE {name} {_kind(name)}")
        lines += [f"{name}{labels} {value}" for labels, value in samples.items()]
    return "".join(line + "\n" for line in lines)


def _samples(scope: str, value: object, labels: dict[str, str] | None = None) -> Iterator[Sample]:
    """Every number below `value`, with its full name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name, found = _split(str(key))
            yield from _samples(
                f"{scope}_{name}" if scope else name, inner, {**(labels or {}), **found}
            )
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _samples(scope, inner, {**(labels or {}), "step": str(i)})
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield _metric_name(scope), labels or {}, value


def _split(key: str) -> tuple[str, dict[str, str]]:
    """`mean{batch_size=1}` as ("mean", {"batch_size": "1"})."""
    match = _KEY.match(key)
    if match is None:  # an open brace without a closing one is part of the name
        return key, {}
    pairs = (pair.partition("=") for pair in (match["labels"] or "").split(",") if pair)
    return match["name"], {_label_name(name): value for name, _, value in pairs}


def _metric_name(text: str) -> str:
    name = _NOT_IN_NAME.sub("_", text)
    return "_" + name if not name or name[0].isdigit() else name


def _label_name(text: str) -> str:
    return _metric_name(text.strip()).replace(":", "_")


def _label_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


def _kind(name: str) -> str:
    """Sums only grow, until a reset, which counters allow. All other numbers go up and down."""
    last_request = name.startswith("last_finished_request")
    return "counter" if name.endswith(_COUNTER_NAMES) and not last_request else "gauge"
