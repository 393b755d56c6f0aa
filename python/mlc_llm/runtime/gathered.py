"""The rows of a batch as lists of tokens, samplings and scorings; and its results by row again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import BatchRow, Sampled, Sampling, Scoring

Numbers: TypeAlias = "array[int]"


class Gathered(NamedTuple):
    """What all rows of a step ask for, one behind the other."""

    tokens: Numbers
    samplings: list[Sampling]
    scorings: list[Scoring]
    logit_rows: Numbers
    """Which tokens get logits, by index among `tokens`: each sampling's, then every token that a
    scoring is about. The sampler expects this order."""


def gathered(rows: Sequence[BatchRow], vocab_size: int) -> Gathered:
    """Raises `RequestError` for a token id outside the vocabulary."""
    tokens, sampled, scored = array("i"), array("i"), array("i")
    samplings: list[Sampling] = []
    scorings: list[Scoring] = []
    for row in rows:
        _check(row, vocab_size)
        if row.scoring is not None:
            first = len(tokens) + row.scoring.first
            scored.extend(range(first, first + len(row.scoring.next_ids)))
            scorings.append(row.scoring)
        tokens.extend(row.token_ids)
        end = len(tokens)
        sampled.extend(range(end - len(row.samplings), end))
        samplings += row.samplings
    return Gathered(tokens, samplings, scorings, sampled + scored)


def by_row(
    rows: Sequence[BatchRow], samples: Sequence[Sampled], scores: Sequence[Sampled]
) -> list[list[Sampled]]:
    """The results of each row: its scores, then its samples."""
    found, sample, score = [], 0, 0
    for row in rows:
        one = list(samples[sample : sample + len(row.samplings)])
        sample += len(row.samplings)
        if row.scoring is not None:
            scored = len(row.scoring.next_ids)
            one = [*scores[score : score + scored], *one]
            score += scored
        found.append(one)
    return found


def _check(row: BatchRow, vocab_size: int) -> None:
    assert len(row.samplings) <= len(row.token_ids), "a sampling without its token"
    if not 0 <= min(row.token_ids) <= max(row.token_ids) < vocab_size:
        raise RequestError(f"token id outside 0 to {vocab_size - 1}")
