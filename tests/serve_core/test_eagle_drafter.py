"""The EAGLE drafter on the fake model: it drafts in pages of sequences, and no token changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from core_harness import Harness, prompt_of
from spec_tools import drafted, speculative
from test_speculation import REQUESTS, answers, small_runner

from mlc_llm.runtime.batch import Batch, BatchOutput, Sampled, Sampling
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.speculation.eagle import EagleDrafter
from mlc_llm.testing.fake_runner import FakeRunner

HEAD = EngineConfig(speculative_mode="eagle", additional_models=["head"])


class SeeingHead:
    """A head that knows what the fake model says, because it runs the model itself."""

    def __init__(self, runner: FakeRunner, *, fails_at: int = -1) -> None:
        self._runner, self._fails_at = runner, fails_at
        self.sizes: list[int] = []

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        self._runner.rollback_sequence(seq_id, num_tokens)

    def draft(self, batch: Batch) -> BatchOutput:
        self.sizes.append(len(batch.rows))
        if len(self.sizes) == self._fails_at:
            raise RuntimeError("a head that is broken")
        for row in batch.rows:
            assert len(row.token_ids) == len(row.samplings) == 1
            assert not row.samplings[0].wants_hidden and row.samplings[0].top_logprobs < 0
        return self._runner.run(batch)


@pytest.mark.parametrize("most", [1, 3, 16])
def test_nothing_but_the_speed_changes(most: int) -> None:
    names = [name for name in REQUESTS if not name.startswith("few")]  # the text drafts for those
    plain = answers(Harness(small_runner()), names)
    runner = small_runner()
    harness = speculative(EagleDrafter(SeeingHead(runner)), runner, HEAD, most=most)
    assert answers(harness, names) == plain
    num_drafted, accepted = drafted(harness)
    assert num_drafted == accepted > 30


def test_a_chain_grows_by_one_call_a_token() -> None:
    runner = FakeRunner()
    head = SeeingHead(runner)
    harness = speculative(EagleDrafter(head), runner, HEAD, most=4)
    harness.add("a", prompt_of(20), max_tokens=51)
    harness.run()
    assert harness.steps == 1 + 10  # the model's token and four of the head in each step
    assert head.sizes == [1] * 40


def test_a_head_that_breaks_in_the_middle_leaves_the_pages_as_they_were() -> None:
    plain = answers(Harness(small_runner()), ["greedy", "sampled"])
    runner = small_runner()
    head = SeeingHead(runner, fails_at=3)
    harness = speculative(EagleDrafter(head), runner, HEAD, most=4)
    assert answers(harness, ["greedy", "sampled"]) == plain


def test_a_head_whose_numbers_are_not_finite_drafts_nothing() -> None:
    class Faulty(SeeingHead):
        def draft(self, batch: Batch) -> BatchOutput:
            super().draft(batch)
            return BatchOutput([[Sampled(-1, error="not finite")] for _ in batch.rows])

    plain = answers(Harness(small_runner()), ["greedy", "sampled"])
    runner = small_runner()
    harness = speculative(EagleDrafter(Faulty(runner)), runner, HEAD)
    assert answers(harness, ["greedy", "sampled"]) == plain
    assert drafted(harness) == (0, 0)


class Text:
    """Stands for a sequence and for the draft behind it."""

    is_decoding = True

    def __init__(self, number: int, tokens: list[int]) -> None:
        self.key, self.known, self.sequence = (number, 0), len(tokens), self
        self._tokens, self.token_ids = tokens, list[int]()

    def tokens(self, start: int, end: int) -> list[int]:
        return self._tokens[start:end]

    def push(self, token_id: int) -> bool:
        self.token_ids.append(token_id)
        return True


def test_a_text_that_repeats_itself_is_drafted_without_the_head() -> None:
    """The times of `StepTimes` are what calls of the head took."""
    asked: list[int] = []
    clock = iter(range(0, 100, 3))
    text, other = Text(0, [1, 2, 3, 4, 5, 1, 2, 3, 4]), Text(1, [1, 2, 3, 4, 5, 9, 8, 6, 4])

    class Head(SeeingHead):
        def draft(self, batch: Batch) -> BatchOutput:
            asked.extend(row.seq_id for row in batch.rows)
            return BatchOutput([[Sampled(7)] for _ in batch.rows])

        def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
            """It has no pages."""

    other.progress = SimpleNamespace(seq_id=31)  # type: ignore[attr-defined]
    other.quiet = Sampling()  # type: ignore[attr-defined]
    drafter = EagleDrafter(Head(FakeRunner()), clock=lambda: next(clock))
    both: Any = [text, other]
    assert [(one.length, one.kind) for one in drafter.offers(both, [4, 4])] == [(4, 3), (4, 0)]
    drafter.draft(both, [3, 1])
    assert (text.token_ids, other.token_ids, asked) == ([5, 1, 2], [7], [31])
    assert drafter.cost(2, 2) == 6.0  # one of the two, twice
    drafter.offers(both[:1], [4])
    assert drafter.cost(1, 4) == 0.0


def test_a_head_without_finite_logits_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Head(SeeingHead):
        def draft(self, batch: Batch) -> BatchOutput:
            return BatchOutput([[Sampled(-1, error="not finite")] for _ in batch.rows])

        def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
            """It has no pages."""

    text = Text(0, [1, 2, 3])
    text.progress = SimpleNamespace(seq_id=5)  # type: ignore[attr-defined]
    text.quiet = Sampling()  # type: ignore[attr-defined]
    drafter, texts = EagleDrafter(Head(FakeRunner())), [cast("Any", text)]
    for _ in range(2):
        drafter.offers(texts, [4])
        drafter.draft(texts, [4])
    assert text.token_ids == []
    assert [one.message for one in caplog.records] == [
        "the EAGLE head drafts nothing for a sequence: not finite"
    ]
