"""`EventTraceRecorder`: the events of each request, with their times, as a Chrome trace.

Perfetto and chrome://tracing open the file. They show one row for each request. Format: "Trace
Event Format", JSON array form; phases B and E (begin and end of a span) and i (an instant).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mlc_llm.protocol import checks

MAX_EVENTS = 1_000_000

Entry = dict[str, str | int]


@dataclass
class _Track:
    """The events of one request, and how often each name began, ended or happened."""

    events: list[tuple[float, str, str, int]] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)


def checked_recorder(recorder: object) -> None:
    """Raises InvalidField for what records no events. None records none, and is allowed."""
    if not isinstance(recorder, EventTraceRecorder | None):
        raise checks.wrong_type("trace_recorder", recorder, "should be an EventTraceRecorder")


class EventTraceRecorder:
    """Collects events from any thread. It keeps `max_events`; later ones are only counted."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._clock = clock
        self._max_events = max_events
        self._lock = threading.Lock()
        self._start = clock()
        self._tracks: dict[str, _Track] = {}
        self._num_events = 0
        self.dropped = 0
        """Events that came after the recorder was full."""

    def add_event(self, request_id: str | Iterable[str], event: str) -> None:
        """Record an event of one or several requests.

        "start x" and "finish x" are the ends of a span x. Any other text is an instant.
        """
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        now = self._clock()
        phase, name = _phase(event)
        with self._lock:
            for one in ids:
                self._add(one, now, phase, name)

    def dump_json(self) -> str:
        """The trace as a JSON array. Times are in microseconds.

        Requests are in the order of their first events, and events in the order of their times.
        "x (k)" is the k-th x of its request, counted from 0.
        """
        with self._lock:
            rows = [(one, list(track.events)) for one, track in self._tracks.items()]
        return json.dumps([self._entry(one, *event) for one, events in rows for event in events])

    def _add(self, request_id: str, now: float, phase: str, name: str) -> None:
        if self._num_events >= self._max_events:
            self.dropped += 1
            return
        self._num_events += 1
        track = self._tracks.setdefault(request_id, _Track())
        k = track.counts.get((phase, name), 0)
        track.counts[phase, name] = k + 1
        track.events.append((now, phase, name, k))

    def _entry(
        self, request_id: str, at: float, phase: str, name: str, k: int
    ) -> dict[str, str | int]:
        entry: dict[str, str | int] = {
            "name": f"{name} ({k})",
            "ph": phase,
            "ts": max(int((at - self._start) * 1e6), 0),
            "pid": 1,
            "tid": request_id,
        }
        if phase == "i":
            entry["s"] = "t"  # the instant belongs to its row only
        return entry


def _phase(event: str) -> tuple[str, str]:
    for word, phase in (("start ", "B"), ("finish ", "E")):
        if event.startswith(word):
            return phase, event[len(word) :]
    return "i", event
