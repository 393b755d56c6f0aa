"""From the rows of a batch to the numbers of a step, and how its tokens are chosen.

From one decoded token to the next hardly anything of these changes. So the objects of the step
before serve again, with new numbers where the old ones lay: whoever meets the same object again
knows that its shape is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_llm.runtime.adapters import adapter_slots
from mlc_llm.runtime.batch import BatchRow
from mlc_llm.runtime.decode_rows import DecodeRows, SameRows
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.gathered import (
    Gathered,
    Numbers,
    check_tokens,
    drafted_of,
    gathered,
    kept_states_of,
    sizes_of,
)
from mlc_llm.runtime.image_rows import ImageRows, without_ids
from mlc_llm.runtime.kv_cache import KVCache
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.sampler import Choice
from mlc_llm.runtime.step_inputs import StepNumbers

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device

MOST_APART = 16
"""Choices of fewer tokens are kept apart by their number: steps of two or three sizes take turns
while a sequence drafts."""


class Preparation:
    """Prepares the steps of one runner, one after the other."""

    numbers: StepNumbers
    """Of the last step."""

    def __init__(
        self,
        limits: RunnerLimits,
        device: Device,
        cache: KVCache,
        fast: FastTokens,
        images: ImageRows | None,
        *,
        drafts: bool = False,
    ) -> None:
        """images: None for a library without images. drafts: the tokens will be rolled back."""
        self._limits, self._device, self._cache = limits, device, cache
        self._fast, self._images, self._drafts = fast, images, drafts
        self._same: SameRows | None = None
        """Of the last step, if another one with them can be prepared from its numbers."""
        self.choice = Choice.of([], limits.vocab_size, device)
        """Of the last step."""
        self._choices: dict[int, Choice] = {}
        """The last ones by their numbers of tokens: a greedy one mostly serves again."""

    def prepare(self, rows: Sequence[BatchRow]) -> None:
        """Make `numbers` and `choice` those of a step with these rows, whose tokens get their
        places. Raises `RequestError` before any change, if pages lack say."""
        if type(rows) is not DecodeRows or rows.same is not self._same:
            self._prepare_anew(rows)
            return
        numbers, tokens = self.numbers, rows.tokens
        if tokens is not None:
            check_tokens(tokens, self._limits.vocab_size)
        placed = self._cache.place(rows.same.sizes, numbers.fast_tokens)
        if placed is not numbers.placed:
            self.numbers = numbers = numbers._replace(placed=placed)
        if tokens is not None:
            for i, token in enumerate(tokens):
                numbers.tokens[i] = token
        if rows.uniforms is not None:
            self.choice.put(rows.uniforms)

    def _prepare_anew(self, rows: Sequence[BatchRow]) -> None:
        plain = self.without_images(rows)
        asked = gathered(plain, self._limits.vocab_size)
        number = len(asked.tokens)
        assert 0 < number <= self._limits.max_batch_tokens, f"batch of {number} tokens"
        self.choice = self._choice_for(asked)
        if asked.uniforms is not None:
            self.choice.put(asked.uniforms)
        self.numbers = self.placed(plain, asked.tokens, asked.logit_rows)
        if type(rows) is DecodeRows and self._images is None:
            self._same = rows.same

    def _choice_for(self, asked: Gathered) -> Choice:
        kept, size = self._choices, min(len(asked.samplings), MOST_APART)
        if asked.scorings or size not in kept or not kept[size].is_for(asked.samplings):
            kept[size] = Choice.of(
                asked.samplings, self._limits.vocab_size, self._device, asked.scorings
            )
        return kept[size]

    def without_images(self, rows: Sequence[BatchRow]) -> Sequence[BatchRow]:
        """The rows with plain ids. The vectors of their images are computed."""
        by_column = type(rows) is DecodeRows
        if self._images is None or by_column or not any(row.images for row in rows):
            return rows
        self._images.prepare(rows)
        return [without_ids(row) if row.images else row for row in rows]

    def placed(self, rows: Sequence[BatchRow], tokens: Numbers, logit_rows: Numbers) -> StepNumbers:
        """Gives the tokens their places. Raises `RequestError` if pages lack."""
        self._same = None
        rows, tokens, logit_rows = self._fast.arranged(rows, tokens, logit_rows)
        adapters, images = adapter_slots(rows) if self._limits.adapters.slots else None, None
        cuts = (kept_states_of(rows), drafted_of(rows)) if self._limits.has_states else ()
        placed = self._cache.place(sizes_of(rows), self._fast.count, *cuts, drafts=self._drafts)
        if self._images is not None:
            try:
                images, placed = self._images.given(rows, placed)
            except BaseException:
                self._roll_back(rows)
                raise
        return StepNumbers(tokens, placed, logit_rows, self._fast.count, adapters, images)

    def _roll_back(self, rows: Sequence[BatchRow]) -> None:
        """The tokens have no places any more."""
        counts = Counter[int]()
        for seq_id, count in sizes_of(rows):
            counts[seq_id] += count
        for seq_id, count in counts.items():
            self._cache.rollback(seq_id, count)
