"""When the tokens of requests came, and how they ended, by a clock that the test sets."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from core_harness import Harness, prompt_of

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core import telemetry
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner


class Clock:
    """Goes on by a second with each run of the model, and when the test says so."""

    def __init__(self, runner: FakeRunner) -> None:
        self.now, run = 0.0, runner.run

        def timed(batch: Any) -> Any:
            self.now += 1.0
            return run(batch)

        runner.run = timed  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self.now


def harness_of(**limits: int) -> tuple[Harness, Clock]:
    runner = FakeRunner(**limits)
    clock = Clock(runner)
    return Harness(runner, clock=clock, expected_error=""), clock


def serving(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = harness.core.metrics()["serving"]
    return found


def seen(histogram: dict[str, Any]) -> tuple[int, float]:
    assert histogram["count"] == histogram["buckets"][-1][1], "a value above all bounds"
    return histogram["count"], histogram["sum"]


def below(histogram: dict[str, Any], bound: float) -> int:
    return max(count for upper, count in histogram["buckets"] if upper <= bound)


def test_requests_whose_prompts_are_scored_have_times_too() -> None:
    harness, _ = harness_of()
    for i, top in enumerate((None, 0, 2)):
        config = GenerationConfig(max_tokens=3)
        data = [TokenData(prompt_of(20, i))]
        harness.add_request(Request(str(i), data, config, prompt_logprobs=top))
    harness.run()
    found = serving(harness)
    names = ("queue_time", "prefill_time", "inference_time", "end_to_end")
    assert [seen(found[name])[0] for name in names] == [3, 3, 3, 3]


def test_the_times_of_two_requests() -> None:
    harness, clock = harness_of(max_num_sequence=1)
    harness.add("first", prompt_of(20), max_tokens=4)
    clock.now += 2.0
    harness.add("second", prompt_of(20, 5), max_tokens=3)
    harness.run()
    found = serving(harness)
    # first: steps end at 3, 4, 5, 6. second: it comes at 2, begins at 6; 7, 8, 9.
    assert seen(found["queue_time"]) == (2, 2.0 + 4.0)
    assert seen(found["time_to_first_token"]) == (2, 3.0 + 5.0)
    assert seen(found["prefill_time"]) == (2, 2.0)
    assert seen(found["inter_token_latency"]) == (5, 5.0)
    assert below(found["inter_token_latency"], 1.0) == 5
    assert below(found["inter_token_latency"], 0.7) == 0
    assert seen(found["end_to_end"]) == (2, 6.0 + 7.0)
    assert seen(found["decode_time"]) == (2, 3.0 + 2.0)
    assert seen(found["inference_time"]) == (2, 4.0 + 3.0)
    assert seen(found["time_per_output_token"]) == (2, 2.0)
    assert (found["prompt_tokens"], found["generation_tokens"]) == (40, 7)
    assert seen(found["request_max_tokens"]) == (2, 7.0)
    assert found["ended"] == {"stop": 0, "length": 2, "abort": 0, "error": 0}


def test_what_runs_and_waits_is_seen_between_steps() -> None:
    harness, _ = harness_of(max_num_sequence=2, num_pages=64)
    for i, name in enumerate("abc"):
        harness.add(name, prompt_of(20, 11 * i), max_tokens=4)
    found = serving(harness)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (0, 3)
    harness.step()
    found = serving(harness)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (2, 1)
    size = harness.runner.limits.page_size
    assert found["kv_cache_usage"] == 2 * -(-20 // size) / 64 == found["kv_pages_used"] / 64
    assert found["generation_tokens"] == 2 and found["prompt_tokens"] == 40
    harness.run()
    found = serving(harness)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (0, 0)
    # What is left belongs to the prefix cache, and no running request needs it.
    assert found["kv_cache_usage"] == 0.0
    assert found["kv_pages_used"] > 0 and found["prefix_cache_sequences"] > 0


@pytest.mark.parametrize("mode", ["radix", "disable"])
def test_the_prefix_cache_keeps_what_has_ended(mode: Any) -> None:
    harness, _ = harness_of()
    harness = Harness(harness.runner, EngineConfig(prefix_cache_mode=mode))
    debug = {"pinned_system_prompt": mode == "radix"}
    harness.add("short", prompt_of(20), max_tokens=2, debug_config=debug)
    harness.add("shorter", prompt_of(20, 3), max_tokens=1)
    harness.add("long", prompt_of(20, 5), max_tokens=9)
    kept = []
    for _ in range(3):
        kept.append(serving(harness)["prefix_cache_sequences"])
        harness.step()
    assert kept == ([0, 1, 2] if mode == "radix" else [0, 0, 0])
    harness.run()
    assert serving(harness)["prefix_cache_sequences"] == (3 if mode == "radix" else 0)


def test_a_request_with_several_sequences_counts_once() -> None:
    harness, _ = harness_of()
    harness.add("several", prompt_of(20), max_tokens=3, n=3)
    harness.step()
    harness.step()
    assert serving(harness)["num_requests_running"] == 1
    harness.run()
    found = serving(harness)
    assert seen(found["time_to_first_token"])[0] == 1
    assert found["generation_tokens"] == 9 and seen(found["inter_token_latency"])[0] == 6
    assert found["ended"]["length"] == 1 and seen(found["request_n"]) == (1, 3.0)


def test_how_requests_end() -> None:
    harness, _ = harness_of()
    for i, name in enumerate(("bad", "gone", "long", "none")):
        harness.add(name, prompt_of(9, i), max_tokens=0 if name == "none" else 9)
    harness.runner.bad_rows = lambda tokens: tokens[:9] == prompt_of(9) and len(tokens) == 12
    for _ in range(5):
        harness.step()
    harness.abort("gone")
    harness.run()
    found = serving(harness)
    assert found["ended"] == {"stop": 0, "length": 2, "abort": 1, "error": 1}
    assert found["corrupted"] == 1
    harness.reset()
    found = serving(harness)
    assert found["ended"] == {"stop": 0, "length": 0, "abort": 0, "error": 0}
    assert found["time_to_first_token"]["count"] == found["corrupted"] == 0


def test_what_the_prefix_cache_had_in_tokens() -> None:
    harness, _ = harness_of()
    harness.add("a", prompt_of(40), max_tokens=2)
    harness.run()
    harness.add("b", [*prompt_of(40), 1, 2, 3], max_tokens=2)
    harness.run()
    found = serving(harness)
    assert found["prefix_queries"] == 83 and 32 <= found["prefix_hits"] <= 40
    assert found["prompt_tokens"] == 83


def test_preemptions_are_counted_and_no_token_twice() -> None:
    harness, _ = harness_of(num_pages=10, max_num_sequence=4, max_batch_tokens=64)
    for i in range(3):
        harness.add(str(i), prompt_of(20, i), max_tokens=50, n=2)
    harness.run()
    found = serving(harness)
    assert found["num_preemptions"] == harness.core.num_preemptions > 0
    assert found["generation_tokens"] == sum(
        len(one) for seen in harness.seen.values() for one in seen.tokens
    )
    assert found["prompt_tokens"] == 60 and found["queue_time"]["count"] == 3


@pytest.mark.parametrize("files", [("serving_metrics.py", "histogram.py")])
def test_a_step_costs_the_same_number_of_calls_for_many_sequences(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "STEPS_AT_ONCE", 1)

    def calls_of(sequences: int) -> int:
        harness = Harness(
            FakeRunner(num_pages=256, max_num_sequence=32, max_batch_tokens=512),
            EngineConfig(prefix_cache_mode="disable"),
        )
        for i in range(sequences):
            harness.add(str(i), prompt_of(9, i), max_tokens=30)
        harness.step()
        harness.step()
        harness.step()
        calls = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename.endswith(files)

        sys.setprofile(count)
        try:
            harness.step()
        finally:
            sys.setprofile(None)
        return calls

    assert 1 <= calls_of(2) == calls_of(32) <= 4


@pytest.mark.parametrize("at_once", [1, 3, 32])
def test_numbers_have_every_step(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Whether it was added up at once or waits for others."""
    monkeypatch.setattr(telemetry, "STEPS_AT_ONCE", at_once)
    harness = Harness(FakeRunner(num_pages=256), EngineConfig())
    harness.add("0", prompt_of(9), max_tokens=12)
    for step in range(1, 12):
        harness.step()
        found = harness.core.metrics()
        assert found["serving"]["generation_tokens"] == step
        assert found["serving"]["iteration_tokens"]["count"] == step
        assert found["serving"]["inter_token_latency"]["count"] == step - 1
        assert (found["prefill_tokens_sum"], found["decode_tokens_sum"]) == (9, step - 1)
