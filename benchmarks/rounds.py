"""Taking measurements: every side in turn, round after round, and what came out of it."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from common import Spread
from peers.base import LineWorker, Missing, Session, Side, Trial

OURS = "ours"
"""The side whose process measures the limits of the machine as well."""
SETTLE = 3.0
"""Seconds of rest once all models are open: OpenVINO's threads go on spinning for one."""

Samples = dict[str, dict[str, dict[str, list[float]]]]
"""Model -> what was measured -> side -> values, one a round from the first on. `..., limits` holds
GB/s and GOPS as sides."""


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
    """Load averages behind each part of a round."""

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
    """Each test on each side in turn, the limits right after ours; peers: names of those sides
    that tests may leave out.

    No test is begun when the clock is over. A side that could not do something is not asked again.
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
                value = attempt(results, key, lambda s=session, t=test: _speed(s, t))
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
    """Loaded: what loads while another is measured takes time from it."""
    session = side.open(path)
    stack.callback(session.close)
    session.wait()
    return session


def _speed(session: Session, test: Trial) -> float:
    value = session.measure(test)
    if not (math.isfinite(value) and value > 0):
        raise Missing(f"it said {value} tok/s")
    return value


def add_limits(results: Results, model: str, what: str, session: Any) -> None:
    """What the machine gives at this moment, beside the figures of this test. Raises Missing."""
    assert isinstance(session, LineWorker)
    for name, value in session.ask({"do": "limits"}).items():
        if value is not None:
            results.add(model, f"{what}, limits", name, value)


def attempt(results: Results, key: str, work: Callable[[], Any]) -> Any:
    """What `work` returns, or None with the reason noted: a missing peer is no failure.

    Nor may anything unforeseen on one side end hours of measuring; it is shown where it happens.
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
