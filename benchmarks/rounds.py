"""Taking measurements: every side in turn, round after round, and what came out of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Spread
from peers.base import LineWorker, Missing, Session, Side, Trial

SETTLE = 3.0
"""Seconds of rest once all models are open: OpenVINO's threads go on spinning for one."""

Samples = dict[str, dict[str, dict[str, list[float]]]]
"""Model -> what was measured -> side -> values. `limits` holds GB/s and GOPS as sides."""


@dataclass
class Results:
    """Everything a run found; written to one JSON file."""

    configuration: dict[str, str] = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Sizes of models, bytes, KL: what is no time."""
    missing: dict[str, str] = field(default_factory=dict)
    """Side, or side and what was asked of it -> why there is no figure."""
    loads: list[float] = field(default_factory=list)
    """Load averages between the rounds."""

    def add(self, model: str, what: str, side: str, value: float) -> None:
        self.samples.setdefault(model, {}).setdefault(what, {}).setdefault(side, []).append(value)

    def median(self, model: str, what: str, side: str) -> float | None:
        values = self.samples.get(model, {}).get(what, {}).get(side)
        return Spread.of(values).median if values else None

    def sides(self, model: str, what: str) -> Mapping[str, list[float]]:
        return self.samples.get(model, {}).get(what, {})


class Clock:
    """The time a run may take."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() > self._end


def speed_round(
    results: Results,
    model: str,
    sides: Sequence[tuple[Side, Path]],
    tests: Iterable[Trial],
    clock: Clock,
) -> None:
    """Each test on each side in turn; the first side is ours and measures the limits as well.

    No test is begun when the clock is over.
    """
    with ExitStack() as stack:
        sessions: list[tuple[str, Session]] = []
        for side, path in sides:
            opened = attempt(results, f"{side.name} on {model}", lambda s=side, p=path: s.open(p))
            if opened is not None:
                stack.callback(opened.close)
                sessions.append((side.name, opened))
        time.sleep(SETTLE)
        for number, test in enumerate(tests):
            if clock.over or not sessions:
                break
            found = []
            turn = number % len(sessions)
            for name, session in sessions[turn:] + sessions[:turn]:
                key = f"{name}, {test.name}, {model}"
                if key in results.missing:
                    continue
                value = attempt(results, key, lambda s=session, t=test: s.measure(t))
                if value is not None:
                    results.add(model, test.name, name, value)
                    found.append(f"{name} {value:.4g}")
                    if session is sessions[0][1]:
                        add_limits(results, model, test.name, session)
            print(f"  {model}, {test.name}: {', '.join(found)}", flush=True)
    results.loads.append(os.getloadavg()[0])


def add_limits(results: Results, model: str, what: str, session: Any) -> None:
    """Bandwidth and VNNI of this moment, beside the figures of this test."""
    assert isinstance(session, LineWorker)
    for name, value in session.ask({"do": "limits"}).items():
        if value is not None:
            results.add(model, f"{what}, limits", name, value)


def attempt(results: Results, key: str, work: Callable[[], Any]) -> Any:
    """What `work` returns, or None with the reason noted: a missing peer is no failure."""
    try:
        return work()
    except Missing as reason:
        if key not in results.missing:
            results.missing[key] = str(reason)
            print(f"  not measured: {key}: {reason}", flush=True)
        return None
