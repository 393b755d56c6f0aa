"""Sequences that go from one runner to another go on as though they had been computed there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import TinyModels, run_rows

from mlc_llm.errors import RequestError, TransferRefused
from mlc_llm.runtime.batch import BatchRow, Sampling
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.transfer import Transfer

PROMPT = [40 + number % 50 for number in range(45)]
WITH_SCORES = Sampling(temperature=0, top_logprobs=5)


def computed(runner: ModelRunner, seq_id: int, tokens: list[int]) -> ModelRunner:
    runner.add_sequence(seq_id)
    run_rows(runner, BatchRow(seq_id, tokens, ()))
    return runner


def continued(runner: ModelRunner, seq_id: int, count: int) -> list[object]:
    """Tokens with all their log-probabilities."""
    found, token = [], 7
    for _ in range(count):
        (one,) = run_rows(runner, BatchRow(seq_id, [token], [WITH_SCORES]))
        found.append((one.token_id, one.logprob, one.top))
        token = one.token_id
    return found


@pytest.mark.parametrize(
    ("name", "window"), [("floats", None), ("plain", Window(20, 3))], ids=["whole", "window"]
)
def test_it_goes_on_bit_for_bit(tiny_models: TinyModels, name: str, window: Window | None) -> None:
    first, second = (tiny_models.runner(name, "portable", window=window) for _ in range(2))
    transfer = computed(first, 3, PROMPT).export_pages(3)
    computed(second, 0, PROMPT[:20])  # its pages are not those of the first runner
    second.import_pages(1, transfer, len(PROMPT))
    second.check_integrity()
    assert second.free_pages == first.free_pages - 2
    expected = continued(first, 3, 20)
    assert continued(second, 1, 20) == expected
    second.remove_sequence(0)
    second.remove_sequence(1)
    assert second.free_pages == second.limits.num_pages


def test_a_beginning_goes_on_bit_for_bit(tiny_models: TinyModels) -> None:
    first, second = (tiny_models.runner("floats", "portable") for _ in range(2))
    transfer = computed(first, 3, PROMPT).export_pages(3, 20)
    assert transfer.tensors[0].shape[0] == 2
    second.import_pages(1, transfer, 20)
    computed(first, 0, PROMPT[:20])
    assert continued(second, 1, 5) == continued(first, 0, 5)


@pytest.fixture
def pair(tiny_models: TinyModels) -> tuple[Transfer, ModelRunner]:
    first, second = (tiny_models.runner("floats", "portable", num_pages=8) for _ in range(2))
    return computed(first, 0, PROMPT).export_pages(0), second


def cut(one: Transfer) -> Transfer:
    return replace(one, tensors=(one.tensors[0][:-1], *one.tensors[1:]))


def altered(one: Transfer) -> Transfer:
    first = one.tensors[0].copy()
    first.view(np.uint8).reshape(-1)[5] ^= 1
    return replace(one, tensors=(first, *one.tensors[1:]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (cut, "cut short or altered"),
        (altered, "cut short or altered"),
        (lambda one: replace(one, tensors=one.tensors[:-1]), "cut short or altered"),
        (lambda one: replace(one, freed=((0, 1),)), "cut short or altered"),
        (lambda one: cut(one).sealed(), "another shape"),
        (lambda one: replace(one, freed=()).sealed(), "another model"),
        (lambda one: replace(one, identity="other").sealed(), "another model"),
        (lambda one: replace(one, length=44).sealed(), "44 tokens, and 45 are wanted"),
    ],
)
def test_what_is_wrong_is_refused(
    pair: tuple[Transfer, ModelRunner], wrong: object, words: str
) -> None:
    transfer, runner = pair
    assert callable(wrong)
    with pytest.raises(TransferRefused, match=words):
        runner.import_pages(1, wrong(transfer), len(PROMPT))
    runner.check_integrity()
    assert runner.free_pages == 8
    runner.import_pages(1, transfer, len(PROMPT))


def test_pages_that_lack_change_nothing(pair: tuple[Transfer, ModelRunner]) -> None:
    transfer, runner = pair
    computed(runner, 0, [1] * 64)
    computed(runner, 2, [1] * 32)
    with pytest.raises(RequestError, match="3 KV pages needed, 2 are free"):
        runner.import_pages(1, transfer, len(PROMPT))
    runner.check_integrity()
    assert runner.free_pages == 2
