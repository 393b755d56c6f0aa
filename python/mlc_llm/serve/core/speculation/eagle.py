"""An EAGLE head as drafter: the model's runner computes it, in the pages of each sequence.

Where the last tokens came up before in a row, it is not asked: what followed there is the draft.
"""

from __future__ import annotations

import logging
import math
import time
from collections import abc
from collections.abc import Callable

from mlc_llm.runtime.batch import Batch, BatchRow, DraftingRunner
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_lengths import StepTimes
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer, TornPages
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup

_log = logging.getLogger(__name__)
REPEATS = 2
"""Kind of offers from which on the text repeats itself: two tokens or more came up before. What
followed there costs nothing, and is right nearly as often as what a head says, or more often."""


class EagleDrafter:
    """Drafts a chain, one batch of all sequences for each position. How good its tokens are is
    learnt apart by how many of the last tokens came up before (`Offer.kind`).

    What the head knows of a sequence lies in the runner's pages, beside what the model knows: so
    forks, rollbacks and prefixes of other sequences have it too. The head samples with the settings
    and the random numbers of the model that verifies, as a draft model does.
    """

    def __init__(
        self, runner: DraftingRunner, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._times = StepTimes()
        self._text = PromptLookup()
        self._repeating = set[tuple[int, int]]()
        """Sequences of the last offers whose drafts come from the text."""
        self._asking = 1.0
        """The share of the others."""
        self._has_warned = False

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        found, self._repeating = [], set()
        in_text = self._text.offers(sequences, most)
        for sequence, offer, length in zip(sequences, in_text, most, strict=True):
            if offer.kind >= REPEATS:
                self._repeating.add(sequence.key)
            found.append(Offer(length if sequence.is_decoding else 0, offer.kind))
        self._asking = 1 - len(self._repeating) / max(len(found), 1)
        return found

    def cost(self, rows: int, depth: int) -> float:
        asking = math.ceil(rows * self._asking)
        return self._times.estimate(asking) * depth if asking else 0.0

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        """Tokens that the head computes take the pages that the step has for the draft."""
        placed = [0] * len(drafts)
        drafting = []
        for i, draft in enumerate(drafts):
            if draft.sequence.key in self._repeating:
                self._text.draft([draft], [lengths[i]])
            else:
                drafting.append(i)
        try:
            while drafting := [i for i in drafting if len(drafts[i].token_ids) < lengths[i]]:
                drafting = self._drafted(drafts, drafting, placed)
        finally:
            self._roll_back(drafts, placed)

    def forget(self, sequence: Sequence) -> None:
        self._text.forget(sequence)

    def reset(self) -> None:
        self._text.reset()

    def check_integrity(self) -> None:
        """Nothing can disagree here."""

    def _roll_back(self, drafts: abc.Sequence[DraftSequence], placed: list[int]) -> None:
        """The model has not computed what the head has put into its pages."""
        try:
            for draft, count in zip(drafts, placed, strict=True):
                if count:
                    self._runner.rollback_sequence(_seq_id(draft), count)
        except Exception as error:
            raise TornPages("draft tokens stay in the pages of a sequence") from error

    def _drafted(
        self, drafts: abc.Sequence[DraftSequence], which: list[int], placed: list[int]
    ) -> list[int]:
        """Draft a token for some of the sequences; returns those that have one more for it.
        placed: counts the tokens of each that are in its pages."""
        start = self._clock()
        rows = [BatchRow(_seq_id(drafts[i]), [_last(drafts[i])], [drafts[i].quiet]) for i in which]
        samples = self._runner.draft(Batch(rows)).samples
        going_on = []
        for i, (sample,) in zip(which, samples, strict=True):
            placed[i] += 1
            if sample.error is not None:
                self._warn(sample.error)
            elif drafts[i].push(sample.token_id):
                going_on.append(i)
        self._times.learn(len(rows), self._clock() - start)
        return going_on

    def _warn(self, error: str) -> None:
        """Once: a head that is broken drafts nothing, and answers come all the same."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("the EAGLE head drafts nothing for a sequence: %s", error)


def _seq_id(draft: DraftSequence) -> int:
    seq_id = draft.sequence.progress.seq_id
    assert seq_id is not None, "only running sequences get drafts"
    return seq_id


def _last(draft: DraftSequence) -> int:
    """The newest token: a draft token, or the last known one."""
    known = draft.sequence.known
    return draft.token_ids[-1] if draft.token_ids else draft.sequence.tokens(known - 1, known)[0]
