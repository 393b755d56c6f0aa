"""What a step has in common with the one before is not made again."""

from __future__ import annotations

import pytest
from tiny_models import TinyModels

from mlc_llm.runtime.batch import NO_ADAPTER, Batch, BatchRow, Sampling
from mlc_llm.runtime.decode_rows import DecodeRows, SameRows
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner

GREEDY = Sampling(temperature=0.0)
FIRST = 5
"""Tokens of each sequence at first."""


def runner_of(models: TinyModels, count: int, window: Window | None = None) -> ModelRunner:
    runner = models.runner("plain", "portable", num_pages=80, window=window)
    for seq_id in range(count):
        runner.add_sequence(seq_id)
        runner.run(Batch([BatchRow(seq_id, [*range(seq_id, seq_id + FIRST)], ())]))
    return runner


def rows_of(same: SameRows, tokens: list[int]) -> Batch:
    return Batch(DecodeRows(same, None, tokens=tokens))


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_objects_have_the_numbers_of_each_step(
    tiny_models: TinyModels, count: int
) -> None:
    runner, same = runner_of(tiny_models, count), same_rows(count)
    found, kept = [], 0
    for step in range(70):
        before, arguments = runner._next.numbers, arguments_of(runner, count)
        runner.run(rows_of(same, [step] * count))
        numbers = runner._next.numbers
        assert numbers.tokens.tolist() == [step] * count
        assert numbers.placed.position.tolist() == [FIRST + step] * count
        assert len({*numbers.placed.groups[0].slots}) == count
        found.append(numbers)
        if numbers is before:
            kept += 1
            assert arguments_of(runner, count) is arguments
    assert kept >= 65, "new ones come only with new room for page ids"


@pytest.mark.parametrize("window", [None, Window(12, 4)])
def test_other_steps_between(tiny_models: TinyModels, window: Window | None) -> None:
    """A prompt, a rollback, other rows: each token is what it is row by row."""
    runners = [runner_of(tiny_models, 3, window) for _ in range(2)]
    all_rows, two = same_rows(3), SameRows([0, 2], [GREEDY] * 2, [NO_ADAPTER] * 2)
    for step in range(24):
        for runner in runners:
            if step == 9:
                runner.rollback_sequence(1, 1)
            if step == 14:
                runner.run(Batch([BatchRow(1, [7, 8, 9], ())]))
        same = two if step % 5 == 3 else all_rows
        batch = rows_of(same, [step + i for i in range(len(same.seq_ids))])
        one, other = runners
        found = [samples[0].token_id for samples in one.run(batch).samples]
        wanted = [samples[0].token_id for samples in other.run(Batch([*batch.rows])).samples]
        assert found == wanted, f"step {step}"
        one.check_integrity()


def arguments_of(runner: ModelRunner, count: int) -> object:
    """Of the last step with so many tokens; None: there was none."""
    staged = runner._step._staged_apart.get((False, count))
    return None if staged is None else staged.arguments


def same_rows(count: int) -> SameRows:
    return SameRows(list(range(count)), [GREEDY] * count, [NO_ADAPTER] * count)
