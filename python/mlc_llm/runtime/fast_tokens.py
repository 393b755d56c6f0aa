"""Which tokens of a step are computed less exactly, and the order of tokens that this needs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField
from mlc_llm.library.metadata import Metadata
from mlc_llm.runtime.batch import BatchRow

if TYPE_CHECKING:
    from mlc_llm.backends.base import Numbers


class FastTokens:
    """`forward`'s input `fast_tokens`: tokens of prompts if they are wanted, else none."""

    def __init__(self, metadata: Metadata, *, are_wanted: bool) -> None:
        """Raises InvalidField if they are wanted and the library has none."""
        if are_wanted and not metadata.has_fast_tokens:
            words = (
                f"the {metadata.backend} kernels of this library know no faster way; use 'exact'"
            )
            raise InvalidField("prompt_precision", "fast", words)
        self._are_wanted = are_wanted
        self.count = 0
        """Of what was arranged last."""

    def arranged(
        self, rows: Sequence[BatchRow], tokens: Numbers, logit_rows: Numbers
    ) -> tuple[Sequence[BatchRow], Numbers, Numbers]:
        """Rows and tokens in the order in which they are computed, and `logit_rows` in that order.

        logit_rows: which tokens get logits, by index among `tokens`. A row that is a prompt in part
        becomes two rows of its sequence.
        """
        if not self._are_wanted:
            return rows, tokens, logit_rows
        self.count = sum(row.prompt_tokens for row in rows)
        rows, logit_rows = prompts_first(rows, logit_rows)
        return rows, array("i", [token for row in rows for token in row.token_ids]), logit_rows


def prompts_first(rows: Sequence[BatchRow], logit_rows: Numbers) -> tuple[list[BatchRow], Numbers]:
    """Rows with tokens of prompts, then rows with all others; and `logit_rows` in that order."""
    prompts = [BatchRow(row.seq_id, row.token_ids[: row.prompt_tokens], ()) for row in rows]
    others = [BatchRow(row.seq_id, row.token_ids[row.prompt_tokens :], ()) for row in rows]
    prompt_at, other_at = 0, sum(row.prompt_tokens for row in rows)
    now_at: list[int] = []
    for prompt, other in zip(prompts, others, strict=True):
        now_at += range(prompt_at, prompt_at + len(prompt.token_ids))
        now_at += range(other_at, other_at + len(other.token_ids))
        prompt_at += len(prompt.token_ids)
        other_at += len(other.token_ids)
    moved = array("i", [now_at[int(row)] for row in logit_rows])
    return [row for row in prompts + others if row.token_ids], moved
