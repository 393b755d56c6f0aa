"""The drafter that looks in the text so far."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer

SHORTEST = 2
"""Tokens of a run that is looked for, or one more. What follows a single token is hardly ever
right."""
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
    """The tokens of one sequence, and the position behind the last copy of each pair and triple.

    A run is one number in its index: that takes half the memory of a tuple.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pairs: dict[int, int] = {}
        self._triples: dict[int, int] = {}
        self._source = 0

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens. Every run but the one at the end goes into its index."""
        known, old = self.tokens, len(self.tokens)
        known += tokens
        for end in range(max(old, SHORTEST), len(known)):  # of runs that are not in yet
            pair = known[end - 2] << TOKEN_BITS | known[end - 1]
            self._pairs[pair] = end
            if end > SHORTEST:
                self._triples[known[end - 3] << 2 * TOKEN_BITS | pair] = end

    def match(self) -> int:
        """How many of the last tokens came up before in a row; remembers what followed there."""
        tokens, source = self.tokens, None
        if len(tokens) < SHORTEST:
            return 0
        pair = tokens[-2] << TOKEN_BITS | tokens[-1]
        if len(tokens) > SHORTEST:
            source = self._triples.get(tokens[-3] << 2 * TOKEN_BITS | pair)
        source = self._pairs.get(pair) if source is None else source
        if source is None:
            return 0
        self._source = source
        return self._reach(source)

    def continuation(self, count: int) -> list[int]:
        """`count` tokens that followed the match; behind the end of the text, these again."""
        found = self.tokens[self._source : self._source + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found

    def _reach(self, source: int) -> int:
        """How many tokens before `source` equal those at the end; two do."""
        tokens, matched = self.tokens, SHORTEST
        while (
            matched < LONGEST_MATCH
            and matched < source
            and tokens[source - 1 - matched] == tokens[-1 - matched]
        ):
            matched += 1
        return matched
