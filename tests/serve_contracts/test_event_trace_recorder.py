"""Event traces: phases, counts, order, threads, bounds."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from mlc_llm.serve.event_trace_recorder import EventTraceRecorder


def ticking() -> Callable[[], float]:
    """A clock that goes on by a millisecond at each look."""
    now = [0.0]

    def tick() -> float:
        now[0] += 0.001
        return now[0]

    return tick


def dumped(recorder: EventTraceRecorder) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(recorder.dump_json())
    return entries


def test_a_stretch_an_instant_and_their_counts() -> None:
    recorder = EventTraceRecorder(clock=ticking())
    for event in ("request added to engine", "start decode", "finish decode", "start decode"):
        recorder.add_event("r", event)
    entries = dumped(recorder)
    assert [(one["name"], one["ph"]) for one in entries] == [
        ("request added to engine (0)", "i"),
        ("decode (0)", "B"),
        ("decode (0)", "E"),
        ("decode (1)", "B"),
    ]
    assert [round(one["ts"], -2) for one in entries] == [1000, 2000, 3000, 4000]
    assert all(one["pid"] == 1 and one["tid"] == "r" for one in entries)
    assert entries[0]["s"] == "t"
    assert "s" not in entries[1]


def test_requests_stand_in_the_order_of_their_first_event() -> None:
    recorder = EventTraceRecorder(clock=ticking())
    recorder.add_event("b", "x")
    recorder.add_event(["a", "b"], "y")
    assert [(one["tid"], one["name"]) for one in dumped(recorder)] == [
        ("b", "x (0)"),
        ("b", "y (0)"),
        ("a", "y (0)"),
    ]


def test_an_empty_trace_is_an_empty_array() -> None:
    assert dumped(EventTraceRecorder()) == []


def test_it_stops_growing_and_says_so() -> None:
    recorder = EventTraceRecorder(max_events=3)
    for _ in range(10):
        recorder.add_event("r", "x")
    assert len(dumped(recorder)) == 3
    assert recorder.dropped == 7


def test_threads_lose_nothing() -> None:
    recorder = EventTraceRecorder()
    threads = [
        threading.Thread(target=lambda i=i: [recorder.add_event(str(i), "x") for _ in range(500)])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = dumped(recorder)
    assert len(entries) == 2000
    for i in range(4):
        own = [one for one in entries if one["tid"] == str(i)]
        assert [one["name"] for one in own] == [f"x ({k})" for k in range(500)]
        assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(own))
