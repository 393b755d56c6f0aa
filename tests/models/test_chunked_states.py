"""Models whose states change only every few tokens on CPUs: each token has the same bits, however
the steps of its sequence were cut, and whatever sequences share."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from architecture_tools import TOKENS, relative_error, runner_of_folder
from random_folders import write_random

from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

NAMES = [
    "Mamba2ForCausalLM",
    "Qwen3_5ForCausalLM",
    pytest.param("FalconH1ForCausalLM", marks=pytest.mark.slow),
    pytest.param("GraniteMoeHybridForCausalLM", marks=pytest.mark.slow),
]
WORST = {"Mamba2ForCausalLM": 1e-5}
"""Largest difference of a logit, relative to the largest one, where pages are not of 16 bits."""
ASKED = Sampling(temperature=0, logit_bias={7: 1e4}, top_logprobs=0)
SEQUENCES, LONGEST, DRAFTS = 4, 60, 3


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("states") / request.param, request.param)


@pytest.fixture(scope="module")
def runner(model: Path) -> ModelRunner:
    return runner_of_folder(model, model.parent, None, draft_states=DRAFTS)


def test_logits_are_those_of_the_plainest_form(model: Path, runner: ModelRunner) -> None:
    exact = runner_of_folder(model, model.parent, "reference").logits(TOKENS).astype(np.float64)
    assert relative_error(runner.logits(TOKENS), exact) <= WORST.get(model.name, 3e-3)


def test_steps_of_any_size_change_no_bit(runner: ModelRunner) -> None:
    whole = runner.logits(TOKENS)
    for step in (1, 3, 7, 16, 17, 64):
        assert (runner.logits(TOKENS, chunk=step) == whole).all(), f"in steps of {step}"


class Lives:
    """Sequences of a runner, whose tokens are known."""

    def __init__(self, runner: ModelRunner, seed: int) -> None:
        self.runner, self.random, self.tokens = runner, random.Random(seed), dict[int, list[int]]()
        self.before: dict[int, int] = {}
        """How many tokens each sequence had before its last step, if that can be undone."""

    def alone(self, tokens: list[int]) -> float:
        """The log-probability of token 7 behind some tokens, in a sequence of their own."""
        self.runner.add_sequence(100)
        ((sample,),) = self.runner.run(Batch([BatchRow(100, tokens, [ASKED])])).samples
        self.runner.remove_sequence(100)
        return sample.logprob or 0.0

    def step(self) -> None:
        """Some sequences get some tokens; a state may be kept, and the last ones may be drafts."""
        rows: list[BatchRow] = []
        room = self.runner.limits.max_batch_tokens
        for seq_id in self.random.sample([*self.tokens], self.random.randint(1, len(self.tokens))):
            most = min(LONGEST - len(self.tokens[seq_id]), room)
            if most > 0:
                rows.append(self.row(seq_id, most, DRAFTS if not rows else 0))
                room -= len(rows[-1].token_ids)
        if not rows:
            return
        samples = self.runner.run(Batch(rows)).samples
        wholes = [[*self.tokens[row.seq_id]] for row in rows]
        if len(rows[0].samplings) > 1:  # only until the next step
            self.cut(rows[0].seq_id, len(wholes[0]) - self.random.randrange(1 + DRAFTS))
        for whole, found in zip(wholes, samples, strict=True):
            for behind, sample in enumerate(reversed(found)):
                assert sample.logprob == self.alone(whole[: len(whole) - behind])

    def row(self, seq_id: int, most: int, most_drafts: int) -> BatchRow:
        """Up to so many tokens more of a sequence."""
        rng, before = self.random, len(self.tokens[seq_id])
        count = min(rng.choice((1, 1, 1, 2, 5, 16, 17, 30)), most)
        drafts = most_drafts if count > most_drafts else 0
        new = [rng.randrange(300) for _ in range(count)]
        places = range(max(before, 1), before + count - drafts)
        kept = sorted(rng.sample(places, min(rng.randint(0, 1), len(places))))
        self.tokens[seq_id] += new
        self.before[seq_id] = before
        return BatchRow(seq_id, new, [ASKED] * (drafts + 1), keep_states=kept)

    def fork(self, parent: int, child: int) -> None:
        whole = len(self.tokens[parent])
        length = self.random.choice([whole, *self.runner.kept_states(parent)])
        if length:
            self.runner.fork_sequence(parent, child, length)
            self.tokens[child] = self.tokens[parent][:length]

    def cut(self, seq_id: int, length: int) -> None:
        """A sequence goes back to so many tokens."""
        if length < len(self.tokens[seq_id]):
            self.runner.rollback_sequence(seq_id, len(self.tokens[seq_id]) - length)
            self.tokens[seq_id] = self.tokens[seq_id][:length]
            self.before.pop(seq_id, None)

    def act(self, number: int) -> None:
        """Something, with a new sequence of that number if there is one."""
        what = self.random.choice(("add", *["step"] * 4, "fork", "undo", "cut", "remove"))
        some = self.random.choice([*self.tokens]) if self.tokens else None
        if what == "add" and len(self.tokens) < SEQUENCES - 1:
            self.runner.add_sequence(number)
            self.tokens[number] = []
        elif some is None:
            return
        elif what == "fork" and len(self.tokens) < SEQUENCES - 1:
            self.fork(some, number)
        elif what == "step":
            self.step()
        elif what == "undo" and some in self.before:
            self.cut(some, self.before[some])
        elif what == "cut" and (kept := self.runner.kept_states(some)):
            self.cut(some, self.random.choice([*kept]))
        elif what == "remove":
            self.runner.remove_sequence(some)
            del self.tokens[some]
            self.before.pop(some, None)
        self.runner.check_integrity()


@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_forked_kept_and_rolled_back(runner: ModelRunner, seed: int) -> None:
    lives = Lives(runner, seed)
    for number in range(100):
        lives.act(number)
    for seq_id in lives.tokens:
        runner.remove_sequence(seq_id)
    assert runner.free_pages == runner.limits.num_pages
