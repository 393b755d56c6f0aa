"""The arithmetic of the accuracy figures, on small made-up distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import accuracy
import agreement
import common
import numpy as np
import ours
import pytest

from mlc_llm.runtime.batch import Batch, BatchOutput, Sampled
from mlc_llm.runtime.limits import RunnerLimits

VOCAB = 50


class ByPosition:
    """Logits that depend on the id and its place, so that a shifted comparison shows."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.chunks: set[int | None] = set()

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> np.ndarray:
        self.chunks.add(chunk)
        places = np.arange(len(token_ids))[:, None] + 7 * np.asarray(token_ids)[:, None]
        waves = np.sin(places * np.arange(1, VOCAB + 1))
        return (self.scale * waves).astype(np.float32)


def make_oracle(runner: ByPosition) -> agreement.OracleAnswers:
    rng = np.random.default_rng(1)
    cases = [
        {
            "name": str(n),
            "kind": "text",
            "start": n,
            "ids": rng.integers(VOCAB, size=n + 64).tolist(),
        }
        for n in (5, 9)
    ]
    forced = [runner.logits(c["ids"])[c["start"] - 1 : -1] for c in cases]
    text = rng.integers(VOCAB, size=common.WINDOW + 40).tolist()
    pieces = common.windows(text)
    logprobs = [common.token_logprobs(runner.logits(p)[:-1], p[1:]) for p in pieces]
    return agreement.OracleAnswers(cases, np.concatenate(forced), text, np.concatenate(logprobs))


def test_log_softmax_survives_great_logits() -> None:
    rows = np.array([[1e4, 1e4 - math.log(3.0)], [-3e4, -3e4]], dtype=np.float64)
    np.testing.assert_allclose(
        np.exp(common.log_softmax(rows)), [[0.75, 0.25], [0.5, 0.5]], rtol=1e-9
    )


def test_kl_divergence_is_the_closed_form_in_the_stated_direction() -> None:
    oracle, our = np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])
    expected = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert common.kl_divergence(oracle, our)[0] == pytest.approx(expected, rel=1e-12)
    assert common.kl_divergence(our, oracle)[0] != pytest.approx(expected, rel=1e-3)


def test_agreement_counts_tops_and_raw_differences() -> None:
    oracle = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]], dtype=np.float32)
    our = np.array([[1.5, 2.5, 0.5], [0.0, 1.0, 0.0]], dtype=np.float32)
    found = agreement.Agreement.of(oracle, our)
    assert found.same_top.tolist() == [True, False]
    np.testing.assert_allclose(found.delta, [0.5, 3.0])
    assert found.kl[0] == pytest.approx(0.0, abs=1e-12)
    assert found.kl[1] > 0.1


def test_forced_positions_line_up_with_the_oracle() -> None:
    runner = ByPosition()
    parts = agreement.compare_forced(runner, make_oracle(ByPosition()), 16)
    assert [len(part.kl) for part in parts] == [common.FORCED, common.FORCED]
    assert max(part.delta.max() for part in parts) == 0.0
    assert runner.chunks == {16}


def test_a_blunter_model_shows_in_every_figure() -> None:
    oracle, blunt = make_oracle(ByPosition(8.0)), ByPosition(4.0)
    total = agreement.Agreement.joined(agreement.compare_forced(blunt, oracle, None))
    assert total.same_top.all()
    assert total.kl.mean() > 0.1
    assert total.delta.max() == pytest.approx(4.0, rel=0.01)


def test_perplexity_ratio_is_one_for_the_oracle_and_exact_for_a_shift() -> None:
    oracle = make_oracle(ByPosition())
    assert agreement.perplexity_ratio(ByPosition(), oracle, None) == pytest.approx(1.0, abs=1e-12)
    worse = agreement.OracleAnswers(
        oracle.cases, oracle.logits, oracle.text_ids, oracle.text_logprobs + math.log(1.25)
    )
    assert agreement.perplexity_ratio(ByPosition(), worse, None) == pytest.approx(1.25, rel=1e-9)


def test_windows_lose_nothing_but_a_lone_last_id() -> None:
    assert common.windows([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]
    assert common.windows([1, 2, 3, 4, 5], 3) == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [([1, 2, 3], [1, 2, 3], 3), ([1, 2], [1, 2, 3], 2), ([1, 9, 3], [1, 2, 3], 1), ([], [1], 0)],
)
def test_common_prefix(left: list[int], right: list[int], same: int) -> None:
    assert agreement.common_prefix(left, right) == same


def test_each_figure_can_be_missed() -> None:
    good = np.ones(200, dtype=bool)
    exact = agreement.Agreement(good, np.full(200, 4e-4), np.full(200, 1e-3))
    assert accuracy.missed(exact, True, 1.0009, "portable") == []
    blunt = agreement.Agreement(np.arange(200) > 2, np.full(200, 6e-4), np.full(200, 3e-3))
    assert len(accuracy.missed(blunt, False, 0.9989, None)) == 4
    assert len(accuracy.missed(blunt, False, 0.9989, "portable")) == 5


class Successor:
    """A runner whose next token is the last one plus one, and which keeps what it was told."""

    def __init__(self, max_batch_tokens: int) -> None:
        self.limits = RunnerLimits(8, 16, 1, max_batch_tokens, 128, VOCAB)
        self.steps: list[tuple[list[int], bool]] = []
        self.sequences: list[int] = []

    def add_sequence(self, seq_id: int) -> None:
        self.sequences.append(seq_id)

    def remove_sequence(self, seq_id: int) -> None:
        self.sequences.remove(seq_id)

    def run(self, batch: Batch) -> BatchOutput:
        (row,) = batch.rows
        assert len(row.token_ids) <= self.limits.max_batch_tokens
        self.steps.append((list(row.token_ids), len(row.samplings) > 0))
        return BatchOutput([[Sampled(row.token_ids[-1] + 1) for _ in row.samplings]])


def test_greedy_sends_long_prompts_in_steps_and_then_one_token_each() -> None:
    runner = Successor(max_batch_tokens=3)
    assert ours.greedy(runner, [1, 2, 3, 4, 5], 3) == [6, 7, 8]  # type: ignore[arg-type]
    assert runner.sequences == []
    assert runner.steps == [([1, 2, 3], False), ([4, 5], True), ([6], True), ([7], True)]


def test_the_data_files_hold_what_the_figures_claim() -> None:
    prompts = common.read_json("prompts.json")
    assert len(prompts["chat"]) + len(prompts["text"]) == 20
    cases = common.read_json("greedy.json")["cases"]
    assert [len(case["answer_ids"]) for case in cases] == [8, 64, 64]
