"""A runner gives rows by column the tokens that it gives the same rows one by one."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from tiny_models import TinyModels

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import NO_ADAPTER, Batch, BatchRow, Sampling
from mlc_llm.runtime.decode_rows import ChosenTokens, DecodeRows, SameRows
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.step_inputs import Taken

GREEDY = Sampling(temperature=0.0)
BIASED = Sampling(temperature=0.0, logit_bias={5: 1.0, 70: 2.0})
LIKELY = Sampling(temperature=0.0, top_logprobs=2)
DRAWN = Sampling(temperature=1.5, top_p=0.95)


class Pair:
    """Two runners with the same sequences."""

    def __init__(self, models: TinyModels, name: str) -> None:
        self.runners = [models.runner(name, "portable", num_pages=80) for _ in range(2)]
        self.last: dict[int, int] = {}
        self.samplings: dict[int, Sampling] = {}

    def begin(self, seq_id: int, length: int, sampling: Sampling) -> None:
        row = BatchRow(seq_id, [(seq_id + 7 * i) % 256 for i in range(length)], (GREEDY,))
        for runner in self.runners:
            runner.add_sequence(seq_id)
            ((sampled,),) = runner.run(Batch([row])).samples
        self.last[seq_id], self.samplings[seq_id] = sampled.token_id, sampling

    def end(self, seq_id: int) -> None:
        for runner in self.runners:
            runner.remove_sequence(seq_id)
        del self.last[seq_id]

    def steps(self, count: int, chance: np.random.Generator) -> None:
        ids, samplings = [*self.last], [self.samplings[i] for i in self.last]
        same = SameRows(ids, samplings, [NO_ADAPTER] * len(ids))
        for _ in range(count):
            uniforms = chance.random(len(self.last)) if same.is_drawn else None
            rows = DecodeRows(same, uniforms, tokens=[*self.last.values()])
            found = self.run(self.runners[0], rows)
            assert isinstance(found, ChosenTokens) != (LIKELY in same.samplings)
            assert [*map(list, found)] == [*map(list, self.run(self.runners[1], [*rows]))]
            self.last = {i: one.token_id for i, (one,) in zip(self.last, found, strict=True)}

    @staticmethod
    def run(runner: ModelRunner, rows: object) -> object:
        return runner.run(Batch(rows)).samples  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_tokens(tiny_models: TinyModels, seed: int) -> None:
    chance, pair, begun = random.Random(seed), Pair(tiny_models, "plain"), 0
    numbers = np.random.default_rng(seed)
    for _ in range(14):
        while len(pair.last) < 4 and chance.random() < 0.8:
            sampling = chance.choice([GREEDY, DRAWN, DRAWN, BIASED, LIKELY])
            pair.begin(begun, chance.randint(1, 60), sampling)
            begun += 1
        if pair.last:
            pair.steps(chance.choice([1, 3, 20]), numbers)
            pair.end(chance.choice([*pair.last]))
        for runner in pair.runners:
            runner.check_integrity()


def test_an_unknown_token_is_refused(tiny_models: TinyModels) -> None:
    runner = tiny_models.runner("plain", "portable")
    runner.add_sequence(0)
    same = SameRows([0], [GREEDY], [NO_ADAPTER])
    with pytest.raises(RequestError, match="token id outside"):
        runner.run(Batch(DecodeRows(same, None, tokens=[runner.limits.vocab_size])))
    assert runner.free_pages == runner.limits.num_pages


def test_which_tokens_are_taken() -> None:
    same = SameRows([4, 5, 6, 7], [GREEDY] * 4, [NO_ADAPTER] * 4)
    for chosen_by in (same.indices, array("i", [0, 1, 2, 3]), array("i", [0, 2, 3, 5])):
        rows = DecodeRows(same, None, chosen_by=chosen_by)
        source: object = "the tokens of the step before"
        found = Taken.of(source, rows)  # type: ignore[arg-type]
        assert found == Taken.of(source, [*rows])  # type: ignore[arg-type]
        assert [first + i for first, _, n in found.runs for i in range(n)] == [*chosen_by]
