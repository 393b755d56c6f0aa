"""The runner's own duties: sampling, refusals, and one row's failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tiny_models import TinyModels

from mlc_llm.errors import RequestError
from mlc_llm.runtime import logit_bias
from mlc_llm.runtime.batch import Batch, BatchRow, LogitBias, Sampled, Sampling, Scoring
from mlc_llm.runtime.logit_bias import PreparedBias
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.tiny_model import TinyShape

PROMPT = list(range(40, 60))
GREEDY = Sampling(temperature=0)


@pytest.fixture
def runner(tiny_models: TinyModels) -> ModelRunner:
    runner = tiny_models.runner("floats", "portable", num_pages=8)
    runner.add_sequence(0)
    return runner


def sampled(runner: ModelRunner, *wanted: Sampling) -> list[Sampled]:
    """PROMPT in as many sequences, each with its own sampling."""
    runner.reset()
    for seq_id in range(len(wanted)):
        runner.add_sequence(seq_id)
    batch = Batch([BatchRow(i, PROMPT, [sampling]) for i, sampling in enumerate(wanted)])
    return [sample for (sample,) in runner.run(batch).samples]


def last_logits(runner: ModelRunner) -> np.ndarray:
    return runner.logits(PROMPT)[-1].astype(np.float64)


def test_greedy_is_the_largest_logit(runner: ModelRunner) -> None:
    assert sampled(runner, GREEDY)[0] == Sampled(int(last_logits(runner).argmax()))


def test_rows_that_want_no_token_get_none(runner: ModelRunner) -> None:
    runner.add_sequence(1)
    output = runner.run(Batch([BatchRow(0, [1, 2], []), BatchRow(1, [3], [GREEDY])]))
    assert [len(samples) for samples in output.samples] == [0, 1]
    assert runner.run(Batch([BatchRow(0, [4], [])])).samples == [[]]


def test_the_last_layer_multiplies_only_rows_with_logits(runner: ModelRunner) -> None:
    rows: list[int] = []

    def record(_function: object, name: str, before: bool, _result: object, *given: object) -> int:
        if before and name.startswith("matmul"):
            rows.append(int(given[0].shape[0]))  # type: ignore[attr-defined]
        return 0

    runner._library["set_instrument"](tvm_ffi.convert(record))
    batch = Batch([BatchRow(0, PROMPT, [GREEDY])])
    runner.run(batch)
    runner._library["set_instrument"](None)
    layers, number = TinyShape().layers, len(PROMPT)
    of_layer = (len(rows) - 1) // layers
    # Behind the last attention: the output matrix, the network and the head.
    assert rows[: -of_layer - 1] == [number] * of_layer * (layers - 1)
    of_last = rows[-of_layer - 1 :]
    assert set(of_last[:-4]) == {number} and of_last[-4:] == [1] * 4


def test_a_bias_is_prepared_once_whatever_rows_it_is_for(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are gone through a single time in its life, and are right in every row."""
    many = LogitBias({i: 0.25 * (i % 7) for i in range(0, 300, 2)})
    few = LogitBias({7: 50.0})
    counted = 0

    class Counted(PreparedBias):
        def __init__(self, *args: Any) -> None:
            nonlocal counted
            counted += 1
            super().__init__(*args)

    monkeypatch.setattr(logit_bias, "PreparedBias", Counted)
    options: dict[str, Any] = {"presence_penalty": 1.5, "token_counts": {7: 1, 2: 1}}
    for i, rows in enumerate([(many, few, None), (None, many, many), (few, many)] * 3):
        options["uniform"] = 0.1 * i
        wanted = [Sampling(logit_bias=one if one is not None else {}, **options) for one in rows]
        plain = [replace(one, logit_bias=dict(one.logit_bias)) for one in wanted]
        assert sampled(runner, *wanted) == sampled(runner, *plain)
    assert counted == 2


@pytest.mark.parametrize("token", [-1, 300, 2**31, -(2**40)])
def test_a_prepared_bias_names_tokens_that_are_there(runner: ModelRunner, token: int) -> None:
    with pytest.raises(RequestError, match="outside 0 to 299"):
        sampled(runner, Sampling(logit_bias=LogitBias({0: 1.0, token: 1.0})))


NUMBERS_TO_ONE = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.3),
    "greedy": Sampling(temperature=0),
    "top-k": Sampling(top_k=5),
    "top-p": Sampling(top_p=0.7),
    "min-p": Sampling(min_p=0.05),
    "all": Sampling(temperature=1.5, top_k=50, top_p=0.8, min_p=0.01),
}


@pytest.mark.parametrize("uniform", [1 - 2**-25, 1 - 2**-26, 1 - 2**-53])
def test_a_random_number_that_float32_would_round_to_one(
    runner: ModelRunner, uniform: float
) -> None:
    """It draws what the largest float32 below 1 draws."""
    below = [replace(one, uniform=1 - 2**-24) for one in NUMBERS_TO_ONE.values()]
    near = [replace(one, uniform=uniform) for one in NUMBERS_TO_ONE.values()]
    for expected, one in zip(below, near, strict=True):
        first, second = sampled(runner, expected, one)
        assert first.error is None
        assert second == first


@pytest.mark.parametrize("wrong", [-2, -12, -(2**31), 300, 2**31 - 1])
def test_a_token_that_is_not_there_is_the_error_of_its_row(
    runner: ModelRunner, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tvm_ffi.from_dlpack(np.array([5, wrong], np.int32))
    monkeypatch.setattr(runner._sampler, "_sample", lambda *_: given)
    sampling = Sampling(temperature=0, top_logprobs=1)
    right, refused = sampled(runner, sampling, sampling)
    assert (right.token_id, right.error) == (5, None)
    assert refused.error is not None
    assert f"token {wrong} " in refused.error


def test_log_probabilities_are_of_the_raw_logits(runner: ModelRunner) -> None:
    logits = last_logits(runner)
    exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    bias = {7: 50.0}
    plain, biased, unasked = sampled(
        runner,
        Sampling(temperature=0, top_logprobs=3),
        Sampling(temperature=0.5, logit_bias=bias, top_logprobs=0),
        GREEDY,
    )
    assert biased.token_id == 7
    assert (unasked.logprob, unasked.top, biased.top) == (None, (), ())
    for sample in (plain, biased):
        assert sample.logprob == pytest.approx(exact[sample.token_id], abs=1e-4)
    assert [i for i, _ in plain.top] == np.argsort(-exact)[:3].tolist()
    assert [p for _, p in plain.top] == pytest.approx(np.sort(exact)[::-1][:3].tolist(), abs=1e-4)


def test_edits_reach_the_choice(runner: ModelRunner) -> None:
    best, second = np.argsort(-last_logits(runner))[:2].tolist()
    banned = Sampling(temperature=0, logit_bias={best: -100.0})
    repeated = Sampling(temperature=0, frequency_penalty=2.0, token_counts={best: 50})
    assert [s.token_id for s in sampled(runner, banned, repeated, GREEDY)] == [second, second, best]


def test_same_numbers_same_token_in_any_row(runner: ModelRunner) -> None:
    wanted = Sampling(temperature=1.2, top_p=0.9, top_k=100, min_p=0.001, uniform=0.73)
    (alone,) = sampled(runner, wanted)
    others = Sampling(temperature=0.8, uniform=0.2)
    assert sampled(runner, others, wanted, GREEDY)[1] == alone


def test_too_few_pages_is_refused_before_any_change(tiny_models: TinyModels) -> None:
    runner = tiny_models.runner("floats", "portable", num_pages=3)
    for seq_id in (0, 1):
        runner.add_sequence(seq_id)
    rows = [BatchRow(0, PROMPT, [GREEDY]), BatchRow(1, PROMPT, [GREEDY])]
    with pytest.raises(RequestError, match="4 KV pages needed, 3 are free"):
        runner.run(Batch(rows))
    assert runner.free_pages == 3
    runner.check_integrity()
    ((sample,),) = runner.run(Batch(rows[1:])).samples
    assert sample == Sampled(int(last_logits(tiny_models.runner("floats", "portable")).argmax()))


@pytest.mark.parametrize("token", [-1, 300, 319, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_refused(runner: ModelRunner, token: int) -> None:
    """300 to 319 lie in the padding of the table."""
    with pytest.raises(RequestError, match="0 to 299"):
        runner.run(Batch([BatchRow(0, [1, token], [GREEDY])]))
    assert runner.free_pages == 8


def test_too_many_sequences_is_refused(runner: ModelRunner) -> None:
    for seq_id in range(1, 4):
        runner.add_sequence(seq_id)
    with pytest.raises(RequestError, match="all 4 sequences"):
        runner.add_sequence(4)


def test_a_row_with_broken_logits_fails_alone(runner: ModelRunner) -> None:
    """The page of one sequence is spoilt; its neighbour must not notice."""
    (clean,) = sampled(runner, GREEDY)
    runner.reset()
    for seq_id in (0, 1):
        runner.add_sequence(seq_id)
        runner.run(Batch([BatchRow(seq_id, PROMPT[:-1], [])]))
    spoilt = runner._cache._main._sequences[1].pages[0]
    np.from_dlpack(runner._step.pages[0])[spoilt] = np.nan
    output = runner.run(Batch([BatchRow(i, PROMPT[-1:], [GREEDY]) for i in (0, 1)]))
    assert output.samples[0] == [clean]
    assert output.samples[1][0].error == "the model produced logits that are not finite"


def test_several_tokens_of_a_row_are_sampled_as_in_rows_that_end_there(runner: ModelRunner) -> None:
    wanted = [
        Sampling(temperature=0.9, uniform=0.1 * i, top_logprobs=2, logit_bias={i: 3.0})
        for i in range(1, 5)
    ]
    output = runner.run(Batch([BatchRow(0, PROMPT, wanted)]))
    runner.reset()
    runner.add_sequence(0)
    first = len(PROMPT) - len(wanted) + 1
    steps = [PROMPT[:first], *([token] for token in PROMPT[first:])]
    apart = [
        runner.run(Batch([BatchRow(0, step, [one])])).samples[0][0]
        for step, one in zip(steps, wanted, strict=True)
    ]
    assert output.samples == [apart]
    assert len({sampled.token_id for sampled in apart}) > 1


def softmax_log(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_known_tokens_are_scored_beside_others(runner: ModelRunner) -> None:
    """The scores are those of the raw logits, wherever a step begins; other rows are as ever."""
    expected = softmax_log(runner.logits(PROMPT).astype(np.float64))
    other = sampled(runner, Sampling(temperature=0.7, uniform=0.3, top_logprobs=2))[0]
    runner.reset()
    for seq_id in (0, 1):
        runner.add_sequence(seq_id)
    drawn = Sampling(temperature=0.7, uniform=0.3, top_logprobs=2)
    first = BatchRow(0, PROMPT[:8], [], scoring=Scoring(2, PROMPT[3:9], 3))
    scores, (beside,) = runner.run(Batch([first, BatchRow(1, PROMPT, [drawn])])).samples
    assert beside == other
    second = BatchRow(0, PROMPT[8:], [GREEDY], scoring=Scoring(0, PROMPT[9:], 0))
    (rest,) = runner.run(Batch([second])).samples
    assert rest.pop() == Sampled(int(last_logits(runner).argmax()))
    found = [*scores, *rest]
    assert [one.token_id for one in found] == PROMPT[3:]
    for row, one in enumerate(found, 2):
        assert one.logprob == pytest.approx(expected[row, one.token_id], abs=1e-5)
    for row, one in enumerate(scores, 2):
        best = np.argsort(-expected[row], kind="stable")[:3]
        assert [token for token, _ in one.top] == best.tolist()
    assert all(one.top == () for one in rest)


def test_a_hidden_vector_comes_only_where_it_is_wanted(runner: ModelRunner) -> None:
    """`tests/models` compares it with NumPy's. It does not depend on what else is in the batch."""
    wanted = Sampling(temperature=0, wants_hidden=True, top_logprobs=1)
    alone = sampled(runner, wanted)[0]
    plain, one, other = sampled(runner, GREEDY, wanted, Sampling(wants_hidden=True, uniform=0.5))
    assert plain.hidden is None and one == alone
    assert one.hidden is not None and one.hidden == other.hidden


def test_nothing_is_trimmed_of_a_step_that_failed(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rolled back, for which a window needs its pages."""

    class Failed:
        def numbers(self) -> list[int]:
            raise RuntimeError("the device has failed")

    trimmed: list[int] = []
    monkeypatch.setattr(runner._cache, "keeps_all", False)
    monkeypatch.setattr(runner._cache, "trim", lambda seq_id, undone: trimmed.append(seq_id))
    runner.add_sequence(7)
    try:
        pending = runner.submit(Batch([BatchRow(7, [1, 2], [GREEDY])]))
        monkeypatch.setattr(pending, "fetched", Failed())
        with pytest.raises(RuntimeError, match="the device has failed"):
            runner.collect(pending)
        assert trimmed == []
    finally:
        runner.remove_sequence(7)
