"""The trace of a run: a Chrome trace whose stretches are whole and say what each request did."""

from __future__ import annotations

import json
from typing import Any

from chrome_trace import Event, check_chrome_trace
from core_harness import Harness, prompt_of

from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.testing.fake_runner import FakeRunner


def traced(runner: FakeRunner, requests: dict[str, dict[str, Any]]) -> tuple[Harness, list[Event]]:
    trace = EventTraceRecorder()
    harness = Harness(runner, trace=trace)
    for i, (name, config) in enumerate(requests.items()):
        harness.add(name, prompt_of(20, i), **config)
    harness.run()
    return harness, json.loads(trace.dump_json())


def count(events: list[Event], tid: str, ph: str, name: str) -> int:
    return sum(
        (one["tid"], one["ph"], one["name"].split(" (")[0]) == (tid, ph, name) for one in events
    )


def test_every_token_after_the_first_is_one_decode() -> None:
    runner = FakeRunner(max_batch_tokens=16)
    harness, events = traced(runner, {str(i): {"max_tokens": 3 + i} for i in range(4)})
    check_chrome_trace(events)
    for name, seen in harness.seen.items():
        assert count(events, name, "B", "decode") == len(seen.tokens[0]) - 1
        assert count(events, name, "B", "prefill") >= 2  # 20 tokens, 16 a step
        assert count(events, name, "i", "request added to engine") == 1
        assert count(events, name, "B", "request") == 1


def test_preemption_is_an_event_and_every_stretch_is_whole() -> None:
    runner = FakeRunner(num_pages=10, max_num_sequence=4, max_batch_tokens=64)
    harness, events = traced(runner, {str(i): {"max_tokens": 50, "n": 2} for i in range(3)})
    check_chrome_trace(events)
    names = harness.seen
    assert sum(count(events, name, "i", "preempt") for name in names) == (
        harness.core.num_preemptions
    )
    assert harness.core.num_preemptions


def test_requests_that_fail_or_are_aborted_end_their_stretches() -> None:
    trace = EventTraceRecorder()
    harness = Harness(trace=trace, expected_error="finite")
    for i, name in enumerate(("bad", "gone", "reset")):
        harness.add(name, prompt_of(9, i), max_tokens=30)
    harness.runner.bad_rows = lambda tokens: tokens[:9] == prompt_of(9) and len(tokens) == 13
    for _ in range(10):
        harness.step()
    harness.abort("gone")
    harness.reset()
    events = json.loads(trace.dump_json())
    check_chrome_trace(events)
    assert all(count(events, name, "E", "request") == 1 for name in ("bad", "gone", "reset"))
