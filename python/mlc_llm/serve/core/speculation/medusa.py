"""Medusa heads as drafter: each drafts the token of one place, all from one hidden vector."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable

from mlc_llm.runtime.batch import DraftHeads, Hidden
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_lengths import StepTimes
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer


class MedusaDrafter:
    """Drafts a chain: the likeliest token of each head, or the one that its sampling draws.

    Heads sample with the settings and the random numbers of the model that verifies, as a draft
    model does. Nothing is remembered of a sequence: what a head reads lies in the sequence itself.
    """

    def __init__(self, heads: DraftHeads, clock: Callable[[], float] = time.perf_counter) -> None:
        self._heads = heads
        self._clock = clock
        self._times = StepTimes()

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        return [self._offer(*one) for one in zip(sequences, most, strict=True)]

    def cost(self, rows: int, depth: int) -> float:
        return self._times.estimate(rows) * depth

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        drafting = list(zip(drafts, lengths, strict=True))
        for head in range(self._heads.count):
            drafting = [one for one in drafting if one[1] > head]
            if not drafting:
                return
            drafting = self._drafted(head, drafting)

    def forget(self, sequence: Sequence) -> None:
        """Nothing is remembered."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def check_integrity(self) -> None:
        """Nothing can disagree here."""

    def _offer(self, sequence: Sequence, most: int) -> Offer:
        return Offer(min(most, self._heads.count) if _hidden(sequence) is not None else 0)

    def _drafted(
        self, head: int, drafting: abc.Sequence[tuple[DraftSequence, int]]
    ) -> list[tuple[DraftSequence, int]]:
        """Let a head draft for some sequences; returns those that have one more token for it."""
        hidden = [_hidden(draft.sequence) for draft, _ in drafting]
        vectors = [one for one in hidden if one is not None]
        samplings = [draft.quiet for draft, _ in drafting]
        start = self._clock()
        samples = self._heads.sample(head, vectors, samplings)
        self._times.learn(len(drafting), self._clock() - start)
        return [
            one
            for one, sample in zip(drafting, samples, strict=True)
            if sample.error is None and one[0].push(sample.token_id)
        ]


def _hidden(sequence: Sequence) -> Hidden | None:
    """The vector with which the last known token was chosen, if it is there."""
    if sequence.hidden is None or sequence.hidden[0] != sequence.known:
        return None
    return sequence.hidden[1]
