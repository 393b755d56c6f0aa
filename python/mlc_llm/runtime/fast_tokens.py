"""Which tokens of a step are computed less exactly, and the order of tokens that this needs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from mlc_llm.errors import InvalidField
from mlc_llm.library.metadata import Metadata
from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import BatchRow
from mlc_llm.runtime.decode_rows import DecodeRows

Numbers: TypeAlias = "array[int]"


class FastTokens:
    """`forward`'s input `fast_tokens`, by precision: none, tokens of prompts, or all."""

    def __init__(self, metadata: Metadata, precision: Precision) -> None:
        """Raises InvalidField for a library that cannot compute so."""
        _check(metadata, precision)
        self._precision, self._has_some = precision, metadata.has_fast_tokens
        self.count = 0
        """Of what was arranged last."""

    def arranged(
        self, rows: Sequence[BatchRow], tokens: Numbers, logit_rows: Numbers
    ) -> tuple[Sequence[BatchRow], Numbers, Numbers]:
        """Rows and tokens in the order in which they are computed, and `logit_rows` in that order.

        logit_rows: which tokens get logits, by index among `tokens`. With fast prompts, a row that
        is a prompt in part becomes two rows of its sequence.
        """
        if self._precision == "fast":
            self.count = len(tokens) if self._has_some else 0
        if self._precision != "fast-prompts":
            return rows, tokens, logit_rows
        by_column = type(rows) is DecodeRows  # none of them belongs to a prompt
        self.count = 0 if by_column else sum(row.prompt_tokens for row in rows)
        if self.count in (0, len(tokens)):
            return rows, tokens, logit_rows  # they are in that order
        rows, logit_rows = prompts_first(rows, logit_rows)
        return rows, array("i", [token for row in rows for token in row.token_ids]), logit_rows


def _check(metadata: Metadata, precision: Precision) -> None:
    if metadata.is_fast and precision != "fast":
        words = "this library computes every token less exactly; use 'fast', or leave model_lib out"
        raise InvalidField("precision", precision, words)
    if precision == "fast" and not metadata.is_fast:
        words = (
            f"the {metadata.backend} kernels of this library have no faster way for every token; "
            "use 'exact', or leave model_lib out"
        )
        raise InvalidField("precision", precision, words)
    if precision == "fast-prompts" and not metadata.has_fast_tokens:
        words = f"the {metadata.backend} kernels of this library know no faster way; use 'exact'"
        raise InvalidField("precision", precision, words)


def prompts_first(rows: Sequence[BatchRow], logit_rows: Numbers) -> tuple[list[BatchRow], Numbers]:
    """Rows with tokens of prompts, then rows with all others; and `logit_rows` in that order."""
    ends = [row.prompt_tokens for row in rows]
    prompts = [
        replace(_part(row, row.token_ids[:end]), images=row.images)  # they are in prompts
        for row, end in zip(rows, ends, strict=True)
    ]
    others = [_part(row, row.token_ids[end:]) for row, end in zip(rows, ends, strict=True)]
    prompt_at, other_at = 0, sum(row.prompt_tokens for row in rows)
    now_at: list[int] = []
    for prompt, other in zip(prompts, others, strict=True):
        now_at += range(prompt_at, prompt_at + len(prompt.token_ids))
        now_at += range(other_at, other_at + len(other.token_ids))
        prompt_at += len(prompt.token_ids)
        other_at += len(other.token_ids)
    moved = array("i", [now_at[int(row)] for row in logit_rows])
    return [row for row in prompts + others if row.token_ids], moved


def _part(row: BatchRow, token_ids: Sequence[int]) -> BatchRow:
    return BatchRow(row.seq_id, token_ids, (), keep_states=row.keep_states, adapter=row.adapter)
