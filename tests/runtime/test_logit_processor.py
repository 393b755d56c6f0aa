"""Edits of logits before sampling: the arrays, carried out as the compiled kernel does."""

from __future__ import annotations

import numpy as np
import pytest

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import Sampling
from mlc_llm.runtime.logit_processor import Edits


def edited(row: list[float], sampling: Sampling) -> list[float]:
    """The row as the second of two; the first asks for nothing."""
    logits = np.stack([np.zeros(len(row)), row]).astype(np.float32)
    edits = Edits.of([Sampling(), sampling])
    assert edits.rows == {1}
    place, number, masked, allowed = edits.arrays(len(row))
    for (i, token), (added, factor, subtracted) in zip(place, number, strict=True):
        value = logits[i, token] + added
        logits[i, token] = (value * factor if value < 0 else value / factor) - subtracted
    for i, words in zip(masked, allowed, strict=True):
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(row)]
        logits[i, bits == 0] = -np.inf
    assert not logits[0].any()
    return logits[1].tolist()


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


def packed(allowed: set[int], vocab: int) -> bytes:
    """A mask, written out bit by bit."""
    words = bytearray(4 * -(-vocab // 32))
    for i in allowed:
        words[i // 8] |= 1 << i % 8
    return bytes(words)


def test_a_mask_leaves_allowed_logits_as_they_are_and_forbids_the_rest() -> None:
    row = [float(i + 1) for i in range(49)]
    for allowed in ({0, 7, 8, 31, 32, 48}, set(range(49)), set()):
        found = edited(row, Sampling(allowed=packed(allowed, 49)))
        assert found == [v if i in allowed else -np.inf for i, v in enumerate(row)]


def test_a_mask_comes_with_bias_and_penalties() -> None:
    sampling = Sampling(
        logit_bias={0: 100.0, 1: 2.0},
        repetition_penalty=2.0,
        token_counts={1: 1},
        allowed=packed({1}, 2),
    )
    assert edited([1, 2], sampling) == [-np.inf, 2]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(token_counts={1: 2}),
        Sampling(presence_penalty=1.0, repetition_penalty=2.0),
    ],
)
def test_nothing_to_edit(sampling: Sampling) -> None:
    assert not Edits.of([sampling] * 3).rows


@pytest.mark.parametrize("token", [-1, 10, 2**31, -(2**40)])
def test_a_token_id_that_is_not_there_is_refused(token: int) -> None:
    for sampling in (
        Sampling(logit_bias={0: 1.0, token: 1.0}),
        Sampling(presence_penalty=1.0, token_counts={token: 1}),
    ):
        with pytest.raises(RequestError, match="outside 0 to 9"):
            Edits.of([Sampling(logit_bias={9: 1.0}), sampling]).arrays(10)
