"""Models whose layers keep a state: no sequence is cut, and all answers are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_harness import Harness, prompt_of

from mlc_llm.errors import InvalidField
from mlc_llm.testing.fake_runner import FakeRunner


class StateRunner(FakeRunner):
    """A runner that refuses what a state does not allow."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.limits = replace(self.limits, has_states=True)
        self.forks = 0

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        assert length == self.sequences[parent].length, "forked before its end"
        self.forks += 1
        super().fork_sequence(parent, child, length)

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        assert num_tokens == 0, "rolled back"
        super().rollback_sequence(seq_id, num_tokens)


def tokens_with(runner: FakeRunner, *asked: tuple[list[int], dict[str, Any]]) -> list[Any]:
    """What is said to each prompt, one after the other in one engine."""
    harness, found = Harness(runner), []
    for i, (prompt, config) in enumerate(asked):
        harness.add(str(i), prompt, **config)
        found.append(harness.run()[str(i)].tokens)
    return found


@pytest.mark.parametrize("max_num_sequence", [1, 2, 4])
def test_continuations_of_one_prompt(max_num_sequence: int) -> None:
    asked = prompt_of(101), {"n": 4, "temperature": 1.0, "seed": 3, "max_tokens": 40}
    limits = {"max_num_sequence": max_num_sequence}
    assert tokens_with(StateRunner(**limits), asked) == tokens_with(FakeRunner(**limits), asked)


def test_a_prompt_that_goes_on_where_another_ended() -> None:
    """The next prompt of a chat begins with all that was computed, and with more."""
    config = {"max_tokens": 10}
    first = prompt_of(50)
    ((answer,),) = tokens_with(FakeRunner(), (first, config))
    runner, plain = StateRunner(), FakeRunner()
    asked = [(first, config), ([*first, *answer, *prompt_of(9)], config), (first[:30], config)]
    assert tokens_with(runner, *asked) == tokens_with(plain, *asked)
    second = [batch for batch in runner.batches if len(batch.rows[0].token_ids) > 1][1]
    assert len(second.rows[0].token_ids) == 10  # the last token was not computed, and nine are new


@pytest.mark.parametrize("num_pages", [12, 16, 40])
def test_several_that_preempt_each_other(num_pages: int) -> None:
    found = []
    for kind in (StateRunner, FakeRunner):
        harness = Harness(kind(num_pages=num_pages, max_num_sequence=4))
        for i in range(5):
            harness.add(str(i), prompt_of(20 + 9 * i, i), max_tokens=60, seed=i, temperature=1.0)
        found.append({name: seen.tokens for name, seen in harness.run().items()})
    assert found[0] == found[1]


def test_a_prompt_cannot_be_pinned() -> None:
    harness = Harness(StateRunner())
    with pytest.raises(InvalidField, match="pinned_system_prompt"):
        harness.add("a", prompt_of(9), debug_config={"pinned_system_prompt": True})
