"""Models whose layers keep a state: no sequence is cut, and all answers are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_harness import Harness, prompt_of
from spec_tools import Seer, drafted, speculative

from mlc_llm.errors import InvalidField
from mlc_llm.runtime.batch import Batch, BatchOutput
from mlc_llm.runtime.limits import DRAFT_STATES
from mlc_llm.testing.fake_runner import FakeRunner


class StateRunner(FakeRunner):
    """A runner that refuses what a state does not allow."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.limits = replace(self.limits, has_states=True, draft_states=DRAFT_STATES)
        self.forks = 0
        self.kept: dict[int, set[int]] = {}
        self.drafted: dict[int, range] = {}
        """Numbers of tokens to which the last step can be undone."""

    def add_sequence(self, seq_id: int) -> None:
        super().add_sequence(seq_id)
        self.kept[seq_id] = set()

    def kept_states(self, seq_id: int) -> Sequence[int]:
        return sorted(self.kept[seq_id])

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        assert length in {*self.kept[parent], self.sequences[parent].length}, "state is cut"
        self.forks += 1
        super().fork_sequence(parent, child, length)
        self.kept[child] = {at for at in self.kept[parent] if at <= length}

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        length = self.sequences[seq_id].length - num_tokens
        places = {*self.kept[seq_id], *self.drafted.pop(seq_id, ())}
        assert num_tokens == 0 or length in places, "state is cut"
        super().rollback_sequence(seq_id, num_tokens)
        self.kept[seq_id] = {at for at in self.kept[seq_id] if at <= length}

    def run(self, batch: Batch) -> BatchOutput:
        self.drafted.clear()
        assert sum(max(len(row.samplings) - 1, 0) for row in batch.rows) <= DRAFT_STATES
        for row in batch.rows:
            end = self.sequences[row.seq_id].length + len(row.token_ids)
            if len(row.samplings) > 1:
                self.drafted[row.seq_id] = range(end - len(row.samplings) + 1, end)
            length = self.sequences[row.seq_id].length
            inside = range(max(length, 1), length + len(row.token_ids))
            assert all(at in inside for at in row.keep_states), "kept outside of the row"
            kept = sorted({*self.kept[row.seq_id], *row.keep_states})
            self.kept[row.seq_id] = {*kept[:1], *kept[-1:]}
        return super().run(batch)


def tokens_with(runner: FakeRunner, *asked: tuple[list[int], dict[str, Any]]) -> list[Any]:
    """What is said to each prompt, one after the other in one engine."""
    harness, found = Harness(runner), []
    for i, (prompt, config) in enumerate(asked):
        harness.add(str(i), prompt, **config)
        found.append(harness.run()[str(i)].tokens)
    return found


def computed(runner: FakeRunner) -> int:
    return sum(len(row.token_ids) for batch in runner.batches for row in batch.rows)


@pytest.mark.parametrize("max_num_sequence", [1, 2, 4])
def test_continuations_of_one_prompt(max_num_sequence: int) -> None:
    asked = prompt_of(101), {"n": 4, "temperature": 1.0, "seed": 3, "max_tokens": 40}
    limits = {"max_num_sequence": max_num_sequence}
    runner = StateRunner(**limits)
    assert tokens_with(runner, asked) == tokens_with(FakeRunner(**limits), asked)
    if max_num_sequence == 4:  # the prompt is computed once
        assert runner.forks == 3 and computed(runner) == 101 + 3 + 4 * 39


def test_the_same_prompt_again() -> None:
    """It goes on before its last token, from a sequence that has ended."""
    config = {"max_tokens": 5}
    asked = [(prompt_of(200), config)] * 3
    runner = StateRunner()
    assert tokens_with(runner, *asked) == tokens_with(FakeRunner(), *asked)
    assert computed(runner) == 200 + 2 * 1 + 3 * 4


def test_prompts_that_begin_alike() -> None:
    """The second one keeps a state where it parts from the first; the third goes on from there."""
    system, config = prompt_of(150), {"max_tokens": 3}
    asked = [([*system, *prompt_of(40, 10 + i)], config) for i in range(4)]
    runner = StateRunner()
    assert tokens_with(runner, *asked) == tokens_with(FakeRunner(), *asked)
    assert computed(runner) == 2 * 190 + 2 * 40 + 4 * 2


@pytest.mark.parametrize("seed", range(8))
def test_random_prompts_with_common_beginnings(seed: int) -> None:
    rng, found = random.Random(seed), []
    roots = [prompt_of(rng.randint(1, 120), i) for i in range(2)]
    asked = [
        (
            [*rng.choice(roots)[: rng.randint(1, 120)], *prompt_of(rng.randint(1, 30), i % 5)],
            {"n": rng.randint(1, 3), "max_tokens": rng.randint(1, 20), "seed": i},
        )
        for i in range(24)
    ]
    for kind in (StateRunner, FakeRunner):
        harness = Harness(kind(num_pages=40, max_num_sequence=4, max_batch_tokens=48))
        for i, (prompt, config) in enumerate(asked):
            harness.add(str(i), prompt, temperature=1.0, **config)
            if i % 3 == 2:
                harness.run()
        found.append({name: seen.tokens for name, seen in harness.run().items()})
    assert found[0] == found[1]


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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_pages", [16, 40])
def test_draft_tokens(num_pages: int, seed: int) -> None:
    """Each state is cut where it is kept, and no text changes."""
    found = []
    for kind in (StateRunner, FakeRunner):
        runner = kind(num_pages=num_pages, max_num_sequence=4)
        harness = speculative(Seer(seed), runner, most=16)
        for i in range(5):
            config = {"max_tokens": 40 + i, "n": 1 + (i + seed) % 2, "seed": i, "temperature": 1.0}
            harness.add(str(i), prompt_of(20 + 9 * i, i % 2), stop_strs=["e"] * (i % 2), **config)
        found.append({name: seen.tokens for name, seen in harness.run(limit=4000).items()})
        assert drafted(harness)[1] > 0
    assert found[0] == found[1]


def test_a_prompt_cannot_be_pinned() -> None:
    harness = Harness(StateRunner())
    with pytest.raises(InvalidField, match="pinned_system_prompt"):
        harness.add("a", prompt_of(9), debug_config={"pinned_system_prompt": True})
