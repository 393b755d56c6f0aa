"""The draft tokens behind one sequence, with the sampling behind each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.runtime.batch import Sampling
from mlc_llm.serve.core.sequence import Sequence

if TYPE_CHECKING:
    from mlc_llm.serve.core.grammar.ahead import GrammarAhead


class DraftSequence:
    """Draft tokens that follow all known tokens of one sequence.

    `samplings[i]` is the sampling of a plain step of a sequence that knows `token_ids[:i]` as well:
    the same random number, penalties and grammar mask. So a draft changes no token, only how soon
    it comes.
    """

    def __init__(self, sequence: Sequence, first: Sampling) -> None:
        """first: the sampling of the next token."""
        self.sequence = sequence
        self.token_ids: list[int] = []
        self.samplings = [first]
        self._ahead: GrammarAhead | None = None
        self._numbers = int(sequence.is_drawn)
        """Random numbers that the samplings so far use."""

    def push(self, token_id: int) -> bool:
        """Add a draft token. False, and it cannot grow any more, where the token is useless.

        So is a token that the grammar does not allow, and a token behind which nothing is sampled:
        it ends the sequence, or the grammar forces what follows.
        """
        request, grammar = self.sequence.request, self.sequence.grammar
        if token_id in request.stop_token_ids:
            return False
        mask = None
        if grammar is not None:
            self._ahead = self._ahead or grammar.ahead(request.may_jump)
            mask = self._ahead.accept(token_id)
            if mask is None:
                return False
        self.token_ids.append(token_id)
        self.samplings.append(
            replace(
                self.samplings[0],
                uniform=self.sequence.uniform(self._numbers),
                token_counts=self._counts(token_id),
                allowed=mask,
            )
        )
        self._numbers += self._ahead is None or not self._ahead.is_forced
        return True

    def _counts(self, token_id: int) -> dict[int, int]:
        counts = self.samplings[-1].token_counts
        if not self.sequence.request.counts_tokens:
            return counts
        return {**counts, token_id: counts.get(token_id, 0) + 1}
