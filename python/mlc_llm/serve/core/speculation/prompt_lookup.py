"""The drafter that looks in the text so far."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer

MAX_NGRAM = 3
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
    """The tokens of one sequence, and the position behind the last copy of each short run."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._indices: list[dict[tuple[int, ...], int]] = [{} for _ in range(MAX_NGRAM)]
        self._source = 0

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens. Every n-gram but the one at the end goes into the index."""
        known, old = self.tokens, len(self.tokens)
        known += tokens
        for n, index in enumerate(self._indices, 1):
            for end in range(max(n, old), len(known)):  # where n-grams end that are not in yet
                index[tuple(known[end - n : end])] = end

    def match(self) -> int:
        """How many of the last tokens came up before in a row; remembers what followed there."""
        for n in range(min(MAX_NGRAM, len(self.tokens)), 0, -1):
            source = self._indices[n - 1].get(tuple(self.tokens[-n:]))
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
