"""Text for Prometheus, format 0.0.4 (prometheus.io, "Exposition formats").

`Page` holds named numbers, and writes them. `add_all` adds nested numbers: a key
`mean{batch_size=1}` inside `decode_time_by_batch_size` becomes
`decode_time_by_batch_size_mean{batch_size="1"}`. A list becomes one sample for each place, with the
label `step`. Texts, flags and nulls are no samples: they are left out.

The numbers are made on the engine's thread, without a lock, and come here once a scrape. So there
is nothing to gain from the metric objects of Prometheus's client library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_KEY = re.compile(r"(?P<name>[^{]*)(?:\{(?P<labels>.*)\})?\Z", re.DOTALL)
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_COUNTER_NAMES = ("_sum", "_count", "_tokens", "_total")

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]
Sample = tuple[str, dict[str, str], float]


@dataclass
class _Family:
    kind: Kind
    help: str
    samples: dict[str, str] = field(default_factory=dict)
    """Name with labels, and the number."""


class Page:
    """Metrics by name, each with its samples. A later sample replaces an equal one."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(
        self,
        name: str,
        value: float,
        labels: Labels | None = None,
        *,
        kind: Kind = "gauge",
        help: str = "",
    ) -> None:
        """One number. help: what it is; the first one given for a name counts."""
        family = self._families.setdefault(name, _Family(kind, help))
        family.samples[name + _label_text(labels or {})] = _number(value)

    def add_histogram(
        self, name: str, values: Mapping[str, object], labels: Labels | None = None, help: str = ""
    ) -> None:
        """values: `Histogram.asdict`, perhaps read back from JSON."""
        found, labels = self._families.setdefault(name, _Family("histogram", help)), labels or {}
        buckets, count, total = values["buckets"], values["count"], values["sum"]
        assert isinstance(buckets, list) and isinstance(count, int)
        assert isinstance(total, (int, float))
        for bound, below in buckets:
            le = {**labels, "le": _number(float(bound))}
            found.samples[f"{name}_bucket{_label_text(le)}"] = _number(below)
        whole = {**labels, "le": "+Inf"}
        found.samples[f"{name}_bucket{_label_text(whole)}"] = _number(count)
        found.samples[f"{name}_sum{_label_text(labels)}"] = _number(float(total))
        found.samples[f"{name}_count{_label_text(labels)}"] = _number(count)

    def add_all(self, metrics: Mapping[str, object]) -> None:
        """All numbers of nested mappings and lists."""
        for name, labels, value in _samples("", metrics):
            self.add(name, value, labels, kind=_kind(name))

    def text(self) -> str:
        """For each name its help, its type and its samples. The text ends with a newline."""
        lines: list[str] = []
        for name, family in self._families.items():
            if family.help:
                lines.append(f"# HELP {name} {_escape(family.help, quote=False)}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{name} {value}" for name, value in family.samples.items()]
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


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str, *, quote: bool = True) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace('"', '\\"') if quote else value


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


def _kind(name: str) -> Kind:
    """Sums only grow, until a reset, which counters allow. All other numbers go up and down."""
    last_request = name.startswith("last_finished_request")
    return "counter" if name.endswith(_COUNTER_NAMES) and not last_request else "gauge"
