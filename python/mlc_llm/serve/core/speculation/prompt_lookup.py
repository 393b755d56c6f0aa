"""The drafter that looks the text so far up: what followed the last time?"""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.serve.core.request_state import Branch
from mlc_llm.serve.core.speculation.draft_sequence import Outlook
from mlc_llm.serve.core.speculation.drafter import Offer

MAX_NGRAM = 3
LONGEST_MATCH = 15
"""Most tokens of a match that are counted: a longer match says nothing more about what follows."""


class PromptLookup:
    """Guesses that the text goes on as it did the last time that its last tokens came up.

    Right for answers that repeat the prompt or themselves: quotations, code, tables. Costs a few
    microseconds a token: what was seen is kept in an index, never searched.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], _Text] = {}

    def offers(self, branches: Sequence[Branch], most: Sequence[int]) -> list[Offer]:
        return [self._offer(*one) for one in zip(branches, most, strict=True)]

    def cost(self, rows: int, depth: int) -> float:
        return 0.0

    def draft(self, outlooks: Sequence[Outlook], lengths: Sequence[int]) -> None:
        for outlook, length in zip(outlooks, lengths, strict=True):
            for token_id in self._texts[outlook.branch.key].continuation(length):
                if not outlook.push(token_id):
                    break

    def forget(self, branch: Branch) -> None:
        self._texts.pop(branch.key, None)

    def reset(self) -> None:
        self._texts.clear()

    def check_integrity(self) -> None:
        """Nothing can disagree here."""

    def _offer(self, branch: Branch, most: int) -> Offer:
        text = self._texts.get(branch.key)
        if text is None:
            text = self._texts[branch.key] = _Text()
        text.extend(branch.tokens(len(text.tokens), branch.known))
        match = text.match()
        return Offer(most, match.bit_length()) if match else Offer()


class _Text:
    """The tokens of one branch and where each short run of them was last followed by another."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._indices: list[dict[tuple[int, ...], int]] = [{} for _ in range(MAX_NGRAM)]
        self._source = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """These follow. Every n-gram but the one at the very end goes into the index."""
        old = len(self.tokens)
        self.tokens += tokens
        end = len(self.tokens)
        for n, index in enumerate(self._indices, 1):
            first = max(n, old)  # where the first n-gram ends that is not in yet
            window = self.tokens[first - n : end - 1]
            grams = zip(*(window[i:] for i in range(n)), strict=False)
            index.update(zip(grams, range(first, end), strict=False))

    def match(self) -> int:
        """How many of the last tokens came up before, in a row; remembers what followed there."""
        for n in range(min(MAX_NGRAM, len(self.tokens)), 0, -1):
            source = self._indices[n - 1].get(tuple(self.tokens[-n:]))
            if source is not None:
                self._source = source
                return self._reach(source, n)
        return 0

    def continuation(self, count: int) -> list[int]:
        """What followed the match; where that runs into the end, it goes round."""
        found: list[int] = []
        for place in range(self._source, self._source + count):
            behind = place - len(self.tokens)
            found.append(found[behind] if behind >= 0 else self.tokens[place])
        return found

    def _reach(self, source: int, matched: int) -> int:
        """How far the text before `source` is that at the end, `matched` tokens being known."""
        tokens = self.tokens
        while (
            matched < LONGEST_MATCH
            and matched < source
            and tokens[source - 1 - matched] == tokens[-1 - matched]
        ):
            matched += 1
        return matched
