"""The drafter that looks in the text so far, and asks another one where nothing is found."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Drafter, Offer
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup

LEAST_KIND = 2
"""The kind of a match of two tokens: what followed a shorter one is mostly wrong."""
KINDS = 8
"""More than `PromptLookup` has; those of the other drafter lie behind them."""


class LookupFirst:
    """Drafts what followed where the last tokens of the text came up before, which costs nothing;
    elsewhere another drafter drafts."""

    def __init__(self, other: Drafter) -> None:
        self._lookup, self._other = PromptLookup(), other
        self._found: dict[tuple[int, int], bool] = {}
        """Of each sequence of the last offers: whether the text has a match."""

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        looked_up = self._lookup.offers(sequences, most)
        found = [one.length > 0 and one.kind >= LEAST_KIND for one in looked_up]
        self._found = {one.key: is_found for one, is_found in zip(sequences, found, strict=True)}
        of_other = [0 if is_found else one for is_found, one in zip(found, most, strict=True)]
        others = self._other.offers(sequences, of_other)
        return [
            ours if is_found else Offer(theirs.length, KINDS + theirs.kind)
            for is_found, ours, theirs in zip(found, looked_up, others, strict=True)
        ]

    def cost(self, rows: int, depth: int) -> float:
        """That of the other drafter, for as many rows as it may have."""
        asked = min(rows, len(self._found) - sum(self._found.values()))
        return self._other.cost(asked, depth) if asked else 0.0

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        for drafter, is_found in ((self._lookup, True), (self._other, False)):
            which = [i for i, one in enumerate(drafts) if self._found[one.sequence.key] is is_found]
            if which:
                drafter.draft([drafts[i] for i in which], [lengths[i] for i in which])

    def forget(self, sequence: Sequence) -> None:
        for one in (self._lookup, self._other):
            one.forget(sequence)

    def reset(self) -> None:
        self._found = {}
        for one in (self._lookup, self._other):
            one.reset()

    def check_integrity(self) -> None:
        for one in (self._lookup, self._other):
            one.check_integrity()
