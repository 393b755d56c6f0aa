"""The rows of a batch as lists of tokens, samplings and scorings; and its results by row again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import BatchRow, Sampled, Sampling, Scoring


@dataclass
class Gathered:
    """What all rows of a step ask for, one behind the other."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    samplings: list[Sampling] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    sampled: array[int] = field(default_factory=lambda: array("i"))
    """Index of each sampling's token among `tokens`."""
    scored: array[int] = field(default_factory=lambda: array("i"))
    """The same of every token that a scoring is about."""

    @property
    def logit_rows(self) -> array[int]:
        """Which tokens get logits, in the order that the sampler expects."""
        return self.sampled + self.scored


def gathered(rows: Sequence[BatchRow], vocab_size: int) -> Gathered:
    """Raises `RequestError` for a token id outside the vocabulary."""
    found = Gathered()
    for row in rows:
        _check(row, vocab_size)
        if row.scoring is not None:
            first = len(found.tokens) + row.scoring.first
            found.scored.extend(range(first, first + len(row.scoring.next_ids)))
            found.scorings.append(row.scoring)
        found.tokens.extend(row.token_ids)
        end = len(found.tokens)
        found.sampled.extend(range(end - len(row.samplings), end))
        found.samplings += row.samplings
    return found


def by_row(
    rows: Sequence[BatchRow], samples: Sequence[Sampled], scores: Sequence[Sampled]
) -> list[list[Sampled]]:
    """The results of each row: its scores, then its samples."""
    found, sample, score = [], iter(samples), iter(scores)
    for row in rows:
        scored = 0 if row.scoring is None else len(row.scoring.next_ids)
        one = [next(score) for _ in range(scored)]
        found.append(one + [next(sample) for _ in row.samplings])
    return found


def _check(row: BatchRow, vocab_size: int) -> None:
    assert len(row.samplings) <= len(row.token_ids), "a sampling without its token"
    if not 0 <= min(row.token_ids) <= max(row.token_ids) < vocab_size:
        raise RequestError(f"token id outside 0 to {vocab_size - 1}")
