"""The drafter that looks in the text so far."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer

NGRAMS = (3, 2)
"""Lengths of runs that are looked for, the longest first. What follows a single token is hardly
ever right."""
TOKEN_BITS = 21
"""Of a token in the number of a run. More tokens would only make worse drafts."""
LONGEST_MATCH = 15
"""Most tokens of a match that are counted: a longer match says nothing more about what follows."""


class PromptLookup:
    """Drafts what followed the last time that the last tokens of the text came up.

    Good for answers that repeat the prompt or themselves: quotations, code, tables. Costs a few
    microseconds a token: an index knows where tokens came up, so nothing is searched.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], _Text] = {}

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        return [self._offer(*one) for one in zip(sequences, most, strict=True)]

    def cost(self, rows: int, depth: int) -> float:
        return 0.0

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        for draft, length in zip(drafts, lengths, strict=True):
            for token_id in self._texts[draft.sequence.key].continuation(length):
                if not draft.push(token_id):
                    break

    def forget(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.key, None)

    def reset(self) -> None:
        self._texts.clear()

    def check_integrity(self) -> None:
        """Nothing can disagree here."""

    def _offer(self, sequence: Sequence, most: int) -> Offer:
        text = self._texts.get(sequence.key)
        if text is None:
            text = self._texts[sequence.key] = _Text()
        text.extend(sequence.tokens(len(text.tokens), sequence.known))
        match = text.match()
        return Offer(most, match.bit_length()) if match else Offer()


class _Text:
    """The tokens of one sequence, and the position behind the last copy of each short run.

    A run is one number in the index: it takes half the memory of a tuple.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._indices: dict[int, dict[int, int]] = {n: {} for n in NGRAMS}
        self._source = 0

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens. Every n-gram but the one at the end goes into the index."""
        known, old = self.tokens, len(self.tokens)
        known += tokens
        for n, index in self._indices.items():
            ends = range(max(n, old), len(known))  # of n-grams that are not in yet
            index.update(zip(self._runs(n, ends), ends, strict=True))

    def match(self) -> int:
        """How many of the last tokens came up before in a row; remembers what followed there."""
        end = len(self.tokens)
        for n, index in self._indices.items():
            for run in self._runs(n, range(max(n, end), end + 1)):  # the last one, if there is one
                source = index.get(run)
                if source is not None:
                    self._source = source
                    return self._reach(source, n)
        return 0

    def continuation(self, count: int) -> list[int]:
        """`count` tokens that followed the match; behind the end of the text, these again."""
        found: list[int] = []
        for position in range(self._source, self._source + count):
            behind = position - len(self.tokens)
            found.append(found[behind] if behind >= 0 else self.tokens[position])
        return found

    def _runs(self, n: int, ends: range) -> list[int]:
        """The numbers of the n-grams behind which these places are."""
        first, count = ends.start - n, len(ends)
        runs = self.tokens[first : first + count]
        for i in range(first + 1, ends.start):
            behind = self.tokens[i : i + count]
            runs = [run << TOKEN_BITS | token for run, token in zip(runs, behind, strict=True)]
        return runs

    def _reach(self, source: int, matched: int) -> int:
        """How many tokens before `source` equal those at the end; at least `matched` do."""
        tokens = self.tokens
        while (
            matched < LONGEST_MATCH
            and matched < source
            and tokens[source - 1 - matched] == tokens[-1 - matched]
        ):
            matched += 1
        return matched
