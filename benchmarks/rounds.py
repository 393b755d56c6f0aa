"""Takes measurements on all sides in turn, in rounds, and holds the results."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from common import Spread
from peers.base import LineWorker, Missing, Session, Side, Trial

OURS = "ours"
"""The side whose process also measures the limits of the machine."""
SETTLE = 3.0
"""Seconds of rest after all models are open. OpenVINO's threads are busy for one more second."""

_T = TypeVar("_T")

Samples = dict[str, dict[str, dict[str, list[float]]]]
"""Model -> what was measured -> side -> values, one a round. Under `..., limits` the sides are the
names of limits, with GB/s or GOPS."""


@dataclass
class Results:
    """All results of a run. They are written to one JSON file."""

    configuration: dict[str, str] = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Results that are no times: sizes of models, bytes, KL."""
    missing: dict[str, str] = field(default_factory=dict)
    """Side, or side and test -> why there is no result."""
    loads: list[float] = field(default_factory=list)
    """Load averages after each part of a round."""

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
    *,
    peers: Collection[str] = (),
) -> None:
    """Run each test on each side in turn, and measure the limits right after our side. peers: names
    of the sides that a test may leave out.

    No test begins after the end of the clock. A side that failed a test does not get it again.
    """
    with ExitStack() as stack:
        sessions: list[tuple[str, Session]] = []
        for side, path in sides:
            key = f"{side.name} on {model}"
            if key not in results.missing and not clock.over:
                opened = attempt(results, key, partial(_opened, side, path, stack))
                if opened is not None:
                    sessions.append((side.name, opened))
        time.sleep(SETTLE)
        for number, test in enumerate(tests):
            if clock.over or not sessions:
                break
            found = []
            turn = number % len(sessions)
            for name, session in sessions[turn:] + sessions[:turn]:
                key = f"{name}, {test.name}, {model}"
                if key in results.missing or (name in peers and not test.peers):
                    continue
                value = attempt(results, key, partial(_speed, session, test))
                if value is not None:
                    results.add(model, test.name, name, value)
                    found.append(f"{name} {value:.4g}")
                    if name == OURS:
                        key = f"limits, {test.name}, {model}"
                        attempt(
                            results, key, partial(add_limits, results, model, test.name, session)
                        )
            print(f"  {model}, {test.name}: {', '.join(found)}", flush=True)


def _opened(side: Side, path: Path, stack: ExitStack) -> Session:
    """A session with its model loaded: loading would slow down measurements of other sides."""
    session = side.open(path)
    stack.callback(session.close)
    session.wait()
    return session


def _speed(session: Session, test: Trial) -> float:
    value = session.measure(test)
    if not (math.isfinite(value) and value > 0):
        raise Missing(f"it said {value} tok/s")
    return value


def add_limits(results: Results, model: str, what: str, session: Session) -> None:
    """Measure the machine's limits now, for this test. Raises Missing."""
    assert isinstance(session, LineWorker)
    for name, value in session.ask({"do": "limits"}).items():
        if value is not None:
            results.add(model, f"{what}, limits", name, value)


def attempt(results: Results, key: str, work: Callable[[], _T]) -> _T | None:
    """What `work` returns. If it raises: None, and `results.missing` gets the reason, because one
    side must not end a run of hours. Unexpected errors are also printed.
    """
    try:
        return work()
    except Missing as missing:
        reason = str(missing)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    reason = " ".join(reason.split())[:300]
    if key not in results.missing:
        results.missing[key] = reason
        print(f"  not measured: {key}: {reason}", flush=True)
    return None
