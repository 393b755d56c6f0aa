"""What the usage of a request counts, and what the engine's sums count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core_harness import Harness, prompt_of
from spec_tools import Seer, speculative
from test_grammar_engine import ask, harness_of, regex

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner

STEP_SECONDS = 2.0


def extra_of(harness: Harness, name: str) -> dict[str, Any]:
    usage = harness.seen[name].usage
    assert usage is not None
    assert (
        usage["extra"]["prefill_tokens"] + usage["prompt_tokens_details"]["cached_tokens"]
        == usage["prompt_tokens"]
    )
    extra: dict[str, Any] = usage["extra"]
    return extra


def check_sums(harness: Harness) -> None:
    """The engine's sums are those of its requests."""
    metrics = harness.core.metrics()
    for name in ("prefill_tokens", "decode_tokens", "jump_forward_tokens"):
        total = sum(extra_of(harness, one)[name] for one in harness.seen)
        assert metrics[f"{name}_sum"] == total


def test_text_that_a_grammar_forces_is_no_prompt() -> None:
    harness = harness_of()
    ask(harness, "a", regex("(ab|cd){100}"))
    harness.run()
    extra = extra_of(harness, "a")
    assert (extra["prefill_tokens"], extra["decode_tokens"]) == (9, 198)  # not the last two
    assert extra["jump_forward_tokens"] == 100
    check_sums(harness)


def test_what_is_computed_again_after_a_preemption_counts_once() -> None:
    harness = Harness(FakeRunner(num_pages=10, max_num_sequence=4, max_batch_tokens=64))
    for i in range(4):
        harness.add(str(i), prompt_of(20, i), max_tokens=50)
    harness.run()
    assert harness.core.num_preemptions > 0
    check_sums(harness)
    for name in harness.seen:
        assert extra_of(harness, name)["decode_tokens"] == 50 - 1
    computed = sum(len(row.token_ids) for one in harness.runner.batches for row in one.rows)
    metrics = harness.core.metrics()
    assert computed > metrics["prefill_tokens_sum"] + metrics["decode_tokens_sum"]


def test_accepted_draft_tokens_are_decoded_tokens() -> None:
    harness = speculative(Seer(), FakeRunner(), most=4)
    harness.add("a", prompt_of(20), max_tokens=40)
    harness.run()
    check_sums(harness)


def test_a_request_that_was_ready_long_before_has_waited() -> None:
    clock = [10.0]
    harness = Harness(FakeRunner(), clock=lambda: clock[0])
    request = Request("a", [TokenData([1, 2, 3])], GenerationConfig(max_tokens=1))
    prepared = harness.core.admission.prepare(request)
    clock[0] = 17.0
    harness.core.add_request(request, prepared)
    harness.core.add_request(replace(request, request_id="b", arrived=12.0))
    while not harness.core.is_idle:
        harness.core.step()
    found = harness.core.metrics()["serving"]["queue_time"]
    assert (found["count"], found["sum"]) == (2, 7.0 + 5.0)


def test_the_speed_of_a_prompt_is_that_of_the_steps_that_computed_it() -> None:
    clock = [0.0]
    runner = FakeRunner(num_pages=64, max_num_sequence=1, max_batch_tokens=40)
    runner.faults.append(lambda _: clock.__setitem__(0, clock[0] + STEP_SECONDS))
    harness = Harness(runner, clock=lambda: clock[0])
    harness.add("first", prompt_of(59), max_tokens=30)
    harness.add("queued", prompt_of(60), max_tokens=3)
    harness.run()
    first, queued = extra_of(harness, "first"), extra_of(harness, "queued")
    assert first["prefill_tokens_per_s"] == 59 / (2 * STEP_SECONDS)
    assert queued["ttft_s"] > 30 * STEP_SECONDS
    assert queued["prefill_tokens"] == 1  # the prefix cache had the rest
    assert queued["prefill_tokens_per_s"] == 1 / STEP_SECONDS
