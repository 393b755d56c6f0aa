"""Prompts do not stall running streams: a step's prompt tokens follow the clock."""

from __future__ import annotations

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.errors import InvalidField
from mlc_llm.runtime.batch import Batch
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.prefill_budget import LEAST, PrefillBudget
from mlc_llm.testing.fake_runner import FakeRunner


def test_nothing_is_held_back_while_nothing_is_known() -> None:
    assert PrefillBudget(0.05).allowance(512, 1) == 512


def test_learns_what_a_prompt_token_costs() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.200, prompt_tokens=200, decoding=0)  # 1 ms each
    assert budget.allowance(512, 1) == 50
    budget.learn(0.010, prompt_tokens=0, decoding=4)
    assert budget.allowance(512, 1) == 50
    budget.learn(0.060, prompt_tokens=50, decoding=4)  # 10 ms of it were the decode step
    assert budget.allowance(512, 1) == 50


def test_each_prompt_that_waits_brings_its_time() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.200, prompt_tokens=200, decoding=0)
    assert [budget.allowance(512, prompts) for prompts in (0, 1, 2, 7, 11)] == [
        *(50, 50, 100, 350, 512)
    ]


def test_the_cost_of_a_prompt_token_beside_more_streams_than_before() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.010, prompt_tokens=0, decoding=4)
    budget.learn(0.200, prompt_tokens=100, decoding=100)  # no step has only decoded since
    assert budget.allowance(512, 1) == 50


@pytest.mark.parametrize("cost", [1.0, 0.06])
def test_a_prompt_always_gets_on(cost: float) -> None:
    budget = PrefillBudget(0.05)
    budget.learn(cost * 10, prompt_tokens=10, decoding=0)
    assert budget.allowance(512, 1) == LEAST
    assert budget.allowance(4, 1) == 4


def test_follows_a_change_of_speed() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.2, prompt_tokens=200, decoding=0)
    for _ in range(30):
        budget.learn(0.4, prompt_tokens=200, decoding=0)
    assert budget.allowance(512, 1) in (24, 25)


@pytest.mark.parametrize("mode", ["hybrid", "chunked"])
def test_a_long_prompt_beside_a_running_stream(mode: str) -> None:
    """A token costs 1 ms on a clock of our own: no step of the stream takes much more than 50."""
    clock = [0.0]
    steps: list[float] = []

    def work(batch: Batch) -> None:
        steps.append(0.001 * sum(len(row.token_ids) for row in batch.rows))
        clock[0] += steps[-1]

    runner = FakeRunner(num_pages=256, max_batch_tokens=256)
    runner.faults.append(work)
    harness = Harness(
        runner, EngineConfig.from_mapping({"prefill_mode": mode}), clock=lambda: clock[0]
    )
    harness.add("stream", prompt_of(20), max_tokens=60)
    harness.step()
    harness.add("long", prompt_of(900, start=3), max_tokens=4)
    seen = harness.run()
    longest = max(steps[1:])
    assert longest < 0.060 if mode == "hybrid" else longest == 0.256
    assert seen["stream"].tokens == alone("stream", prompt_of(20), max_tokens=60)
    assert seen["long"].tokens == alone("long", prompt_of(900, start=3), max_tokens=4)


@pytest.mark.parametrize("streams", [0, 24])
def test_a_crowd_gets_its_first_tokens_as_fast_as_prompts_are_computed(streams: int) -> None:
    """A token costs 1 ms on a clock of our own, of a prompt or of a stream. Prompts of 40 tokens;
    one alone may add 50 ms to a step. The crowd would then wait three quarters longer."""
    crowd, clock, longest = 40, [0.0], 0.0

    def work(batch: Batch) -> None:
        clock[0] += 0.005 + 0.001 * sum(len(row.token_ids) for row in batch.rows)

    runner = FakeRunner(num_pages=1024, max_batch_tokens=256, max_num_sequence=64)
    runner.faults.append(work)
    harness = Harness(runner, clock=lambda: clock[0])
    for i in range(streams):
        harness.add(f"stream {i}", prompt_of(10, start=i), max_tokens=100)
    for _ in range(8):
        harness.step()
    names, began = [f"one of {i}" for i in range(crowd)], clock[0]
    for i, name in enumerate(names):
        harness.add(name, prompt_of(40, start=i), max_tokens=20)
    first: dict[str, float] = {}
    while len(first) < crowd:
        before = clock[0]
        harness.step()
        longest = max(longest, clock[0] - before)
        for name in names:
            if harness.seen[name].tokens[0]:
                first.setdefault(name, clock[0] - began)
    waits = sorted(first.values())
    alone_s = 0.040 * crowd
    assert waits[crowd // 2] < 0.7 * alone_s
    assert waits[-1] < 1.25 * alone_s
    assert longest < 0.005 + 0.001 * 256 + 0.0001  # a full step and no more
    assert list(first) == names  # nobody overtakes
    seen = harness.run()
    assert seen[names[-1]].tokens == alone("x", prompt_of(40, start=crowd - 1), max_tokens=20)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 60_001, "50", True])
def test_budgets_that_are_refused(value: object) -> None:
    with pytest.raises(InvalidField, match="prefill_time_budget_ms"):
        EngineConfig.from_mapping({"prefill_time_budget_ms": value})
