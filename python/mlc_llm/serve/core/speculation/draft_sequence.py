"""The draft tokens behind one sequence, with the sampling behind each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.runtime.batch import GREEDY, Sampling
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

    @property
    def quiet(self) -> Sampling:
        """The sampling of the next token, without what nobody reads of a draft."""
        last = self.samplings[-1]
        if last.top_logprobs < 0 and not last.wants_hidden:
            return last
        return replace(last, top_logprobs=-1, wants_hidden=False)

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
        self.samplings.append(self._sampling(token_id, mask))
        self._numbers += self._ahead is None or not self._ahead.is_forced
        return True

    def _sampling(self, token_id: int, mask: bytes | None) -> Sampling:
        """Behind this token. Where nothing in it changes it is the first one itself: whoever meets
        the same object again knows that."""
        first, request = self.samplings[0], self.sequence.request
        if first.temperature <= GREEDY and mask is first.allowed and not request.counts_tokens:
            return first
        uniform = self.sequence.uniform(self._numbers)
        return replace(first, uniform=uniform, token_counts=self._counts(token_id), allowed=mask)

    def _counts(self, token_id: int) -> dict[int, int]:
        counts = self.samplings[-1].token_counts
        if not self.sequence.request.counts_tokens:
            return counts
        return {**counts, token_id: counts.get(token_id, 0) + 1}
