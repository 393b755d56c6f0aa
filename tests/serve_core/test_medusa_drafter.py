"""Draft heads on the fake model: they read the right vectors, and no token changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from core_harness import Harness, prompt_of
from spec_tools import drafted, speculative
from test_speculation import REQUESTS, answers, small_runner

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Hidden, Sampled, Sampling
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.speculation.medusa import MedusaDrafter
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import HIDDEN, FakeRunner
from mlc_llm.testing.fake_sampling import fake_logits, sample

HEADS = EngineConfig(speculative_mode="medusa", additional_models=["heads"])


class SeeingHeads:
    """Heads that find a text by its hidden vector, and know what the fake model says behind it."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.texts: dict[tuple[float, ...], list[int]] = {}
        self.asked: list[int] = []

    def sample(
        self, head: int, hidden: Sequence[Hidden], samplings: Sequence[Sampling]
    ) -> list[Sampled]:
        self.asked.append(head)
        assert not any(one.wants_hidden or one.top_logprobs >= 0 for one in samplings)
        return [self._said(*one) for one in zip(hidden, samplings, strict=True)]

    def _said(self, hidden: Hidden, sampling: Sampling) -> Sampled:
        tokens = self.texts[tuple(hidden)]
        token = sample(fake_logits(tokens, 300), sampling).token_id
        tokens.append(token)
        return Sampled(token)


class Watched(MedusaDrafter):
    """Tells the heads each text, under the vector behind which its last token was chosen."""

    def __init__(self, heads: SeeingHeads) -> None:
        super().__init__(heads)
        self._seeing = heads

    def draft(self, drafts: Any, lengths: Any) -> None:
        for one in drafts:
            tokens = [*one.sequence.tokens(0, one.sequence.known)]
            vector = tuple(fake_logits(tokens[:-1], 300)[:HIDDEN].tolist())
            self._seeing.texts[vector] = tokens
        super().draft(drafts, lengths)


@pytest.mark.parametrize("most", [1, 3, 16])
def test_nothing_but_the_speed_changes(most: int) -> None:
    plain = answers(Harness(small_runner()), list(REQUESTS))
    harness = speculative(Watched(SeeingHeads()), small_runner(), HEADS, most=most)
    assert answers(harness, list(REQUESTS)) == plain
    num_drafted, accepted = drafted(harness)
    assert num_drafted == accepted > 30


def test_each_head_has_its_own_place() -> None:
    heads = SeeingHeads()
    harness = speculative(Watched(heads), FakeRunner(), HEADS)
    harness.add("a", prompt_of(20), max_tokens=41)
    harness.run()
    assert harness.steps == 1 + 10  # the model's token and three of heads in each step
    assert heads.asked == [0, 1, 2] * 10


def test_no_vector_is_asked_for_without_heads() -> None:
    runner = FakeRunner()
    harness = Harness(runner, EngineConfig())
    harness.add("a", prompt_of(20), max_tokens=5)
    harness.run()
    rows = [row for batch in runner.batches for row in batch.rows]
    assert rows and not any(one.wants_hidden for row in rows for one in row.samplings)


def test_vectors_for_heads_are_no_embeddings() -> None:
    harness = speculative(Watched(SeeingHeads()), FakeRunner(), HEADS)
    config = GenerationConfig(max_tokens=0)
    data = [TokenData(prompt_of(20))]
    harness.add_request(Request("scored", data, config, prompt_logprobs=0))
    harness.add_request(Request("asked", data, config, is_embedding=True))
    harness.run()
    assert harness.seen["scored"].embedding is None
    assert harness.seen["asked"].embedding is not None


def test_a_head_that_fails_costs_its_drafts_only() -> None:
    class Faulty(SeeingHeads):
        def _said(self, hidden: Hidden, sampling: Sampling) -> Sampled:
            return Sampled(-1, error="not finite")

    plain = answers(Harness(small_runner()), ["greedy", "sampled"])
    harness = speculative(Watched(Faulty()), small_runner(), HEADS)
    assert answers(harness, ["greedy", "sampled"]) == plain
    assert drafted(harness) == (0, 0)
