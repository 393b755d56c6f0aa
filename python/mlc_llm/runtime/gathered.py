"""The rows of a batch as lists of tokens, samplings and scorings; and its results by row again.

Rows by column are taken as they are: no function here looks at each of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import BatchRow, Sampled, Sampling, Scoring
from mlc_llm.runtime.decode_rows import DecodeRows, Uniforms

Numbers: TypeAlias = "array[int]"


class Gathered(NamedTuple):
    """What all rows of a step ask for, one behind the other."""

    tokens: Numbers
    samplings: Sequence[Sampling]
    scorings: list[Scoring]
    logit_rows: Numbers
    """Which tokens get logits, by index among `tokens`: each sampling's, then every token that a
    scoring is about. The sampler expects this order."""
    uniforms: Uniforms | None = None
    """Of all samplings, in place of their own; None: their own."""


def gathered(rows: Sequence[BatchRow], vocab_size: int) -> Gathered:
    """Raises `RequestError` for a token id outside the vocabulary."""
    if type(rows) is DecodeRows:
        return _by_column(rows, vocab_size)
    tokens, sampled, scored = array("i"), array("i"), array("i")
    samplings: list[Sampling] = []
    scorings: list[Scoring] = []
    for row in rows:
        assert len(row.samplings) <= len(row.token_ids), "a sampling without its token"
        check_tokens(row.token_ids, vocab_size)
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


def sizes_of(rows: Sequence[BatchRow]) -> Sequence[tuple[int, int]]:
    """Of each row its sequence, and how many tokens it gets."""
    if type(rows) is DecodeRows:
        return rows.same.sizes
    return [(row.seq_id, len(row.token_ids)) for row in rows]


def kept_states_of(rows: Sequence[BatchRow]) -> dict[int, Sequence[int]]:
    """By sequence: behind which tokens its state is kept, if behind any."""
    if type(rows) is DecodeRows:
        return {}
    return {row.seq_id: row.keep_states for row in rows if row.keep_states}


def drafted_of(rows: Sequence[BatchRow]) -> dict[int, int]:
    """By sequence: how many draft tokens its row ends with, if with any."""
    if type(rows) is DecodeRows:
        return {}
    return {row.seq_id: len(row.samplings) - 1 for row in rows if len(row.samplings) > 1}


def _by_column(rows: DecodeRows, vocab_size: int) -> Gathered:
    if rows.tokens is None:
        tokens = array("i", bytes(4 * len(rows)))
    else:
        tokens = array("i", rows.tokens)
        check_tokens(tokens, vocab_size)
    return Gathered(tokens, rows.same.samplings, [], rows.same.indices, rows.uniforms)


def check_tokens(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises `RequestError` for a token id outside the vocabulary."""
    if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise RequestError(f"token id outside 0 to {vocab_size - 1}")
