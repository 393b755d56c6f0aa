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
    assert PrefillBudget(0.05).allowance(512) == 512


def test_learns_what_a_prompt_token_costs() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.200, prompt_tokens=200, decoding=0)  # 1 ms each
    assert budget.allowance(512) == 50
    budget.learn(0.010, prompt_tokens=0, decoding=4)
    assert budget.allowance(512) == 40  # a decode step takes 10 ms of the 50


@pytest.mark.parametrize("cost", [1.0, 0.06])
def test_a_prompt_always_gets_on(cost: float) -> None:
    budget = PrefillBudget(0.05)
    budget.learn(cost * 10, prompt_tokens=10, decoding=0)
    assert budget.allowance(512) == LEAST
    assert budget.allowance(4) == 4


def test_follows_a_change_of_speed() -> None:
    budget = PrefillBudget(0.05)
    budget.learn(0.2, prompt_tokens=200, decoding=0)
    for _ in range(30):
        budget.learn(0.4, prompt_tokens=200, decoding=0)
    assert budget.allowance(512) in (24, 25)


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


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 60_001, "50", True])
def test_budgets_that_are_refused(value: object) -> None:
    with pytest.raises(InvalidField, match="prefill_time_budget_ms"):
        EngineConfig.from_mapping({"prefill_time_budget_ms": value})
