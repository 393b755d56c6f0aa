"""Edits of logits before sampling, and the most likely tokens of a row."""

from __future__ import annotations

import numpy as np
import pytest

from mlc_llm.runtime.batch import Sampling
from mlc_llm.runtime.logit_processor import edit_row, needs_edit, top_tokens


def edited(row: list[float], sampling: Sampling) -> list[float]:
    assert needs_edit(sampling)
    values = np.array(row, np.float32)
    edit_row(values, sampling)
    return values.tolist()


def test_bias_touches_only_what_it_names() -> None:
    assert edited([1, 2, 3], Sampling(logit_bias={0: 5.0, 2: -100.0})) == [6, 2, -97]


def test_presence_once_and_frequency_by_count() -> None:
    counts = {0: 1, 2: 3}
    assert edited([1, 2, 3], Sampling(presence_penalty=0.5, token_counts=counts)) == [0.5, 2, 2.5]
    assert edited([1, 2, 3], Sampling(frequency_penalty=0.5, token_counts=counts)) == [0.5, 2, 1.5]
    assert edited([1, 2], Sampling(presence_penalty=-1.0, token_counts={1: 9})) == [1, 3]


def test_repetition_divides_positive_and_multiplies_negative() -> None:
    sampling = Sampling(repetition_penalty=2.0, token_counts={0: 1, 1: 5, 2: 1})
    assert edited([4, -4, 0, 4], sampling) == [2, -8, 0, 4]


def test_order_is_bias_then_repetition_then_presence_and_frequency() -> None:
    sampling = Sampling(
        logit_bias={0: 3.0},
        repetition_penalty=2.0,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        token_counts={0: 2},
    )
    assert edited([1, 7], sampling) == [(1 + 3) / 2 - 0.25 - 2 * 0.5, 7]


def test_masked_tokens_stay_masked() -> None:
    sampling = Sampling(
        logit_bias={0: 100.0}, repetition_penalty=1.5, presence_penalty=-2.0, token_counts={0: 3}
    )
    assert edited([-np.inf, 1], sampling) == [-np.inf, 1]


def packed(allowed: set[int], vocab: int) -> bytes:
    """A mask, written out bit by bit."""
    words = bytearray(4 * -(-vocab // 32))
    for i in allowed:
        words[i // 8] |= 1 << i % 8
    return bytes(words)


def test_a_mask_leaves_allowed_logits_as_they_are_and_forbids_the_rest() -> None:
    row = np.arange(49, dtype=np.float32)
    for allowed in ({0, 7, 8, 31, 32, 48}, set(range(49)), set()):
        found = edited(row.tolist(), Sampling(allowed=packed(allowed, 49)))
        assert found == [v if i in allowed else -np.inf for i, v in enumerate(row.tolist())]


def test_a_mask_comes_after_bias_and_penalties() -> None:
    sampling = Sampling(
        logit_bias={0: 100.0, 1: 2.0},
        repetition_penalty=2.0,
        token_counts={1: 1},
        allowed=packed({1}, 2),
    )
    assert edited([1, 2], sampling) == [-np.inf, 2]


def test_a_mask_does_not_hide_logits_that_are_not_finite() -> None:
    found = edited([np.nan, np.inf, 1, np.nan], Sampling(allowed=packed({2, 3}, 4)))
    assert np.isnan(found[:2]).all() and found[2] == 1 and np.isnan(found[3])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(token_counts={1: 2}),
        Sampling(presence_penalty=1.0, repetition_penalty=2.0),
    ],
)
def test_nothing_to_edit(sampling: Sampling) -> None:
    assert not needs_edit(sampling)
    row = np.array([1, 2, 3], np.float32)
    edit_row(row, sampling)
    assert row.tolist() == [1, 2, 3]


@pytest.mark.parametrize("k", [0, 1, 2, 5, 20, 50])
def test_top_tokens_against_a_sort(k: int) -> None:
    row = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    total = float(np.log(np.exp(row.astype(np.float64)).sum()))
    top = top_tokens(row, total, k)
    assert [i for i, _ in top] == np.argsort(-row)[:k].tolist()
    assert [p for _, p in top] == [float(row[i]) - total for i, _ in top]


def test_top_tokens_of_equals_come_by_id() -> None:
    row = np.array([1, 5, 5, 0, 5], np.float32)
    assert [i for i, _ in top_tokens(row, 0.0, 4)] == [1, 2, 4, 0]


def test_top_tokens_cut_through_equals_takes_the_first() -> None:
    """Which of equal tokens is shown must not depend on how a partition happens to work."""
    row = np.zeros(1000, np.float32)
    row[500] = 1
    assert [i for i, _ in top_tokens(row, 0.0, 4)] == [500, 0, 1, 2]
