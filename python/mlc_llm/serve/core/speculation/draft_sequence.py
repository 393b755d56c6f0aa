"""What a branch's next samplings are if tokens that were only guessed come true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.runtime.batch import Sampling
from mlc_llm.serve.core.request_state import Branch

if TYPE_CHECKING:
    from mlc_llm.serve.core.grammar.ahead import GrammarAhead


class Outlook:
    """Drafted tokens of one branch, in a row behind all it knows.

    `samplings[i]` is exactly the sampling of the step in which the branch knows `drafts[:i]`: its
    random number, its penalties, its grammar. So a draft changes no token, only how soon it comes.
    """

    def __init__(self, branch: Branch, first: Sampling) -> None:
        """first: of the next token."""
        self.branch = branch
        self.drafts: list[int] = []
        self.samplings = [first]
        self._ahead: GrammarAhead | None = None
        self._numbers = int(branch.is_drawn)
        """Random numbers that the samplings so far use."""

    def push(self, token_id: int) -> bool:
        """Draft one more token; False, and no more can be, where it would be of no use.

        That is a token that the grammar does not allow, or one behind which nothing is sampled:
        the branch would end there, or the grammar would force what follows.
        """
        request = self.branch.request
        if token_id in request.stop_token_ids:
            return False
        mask = None
        if self.branch.grammar is not None:
            self._ahead = self._ahead or self.branch.grammar.ahead(request.may_jump)
            mask = self._ahead.accept(token_id)
            if mask is None:
                return False
        self.drafts.append(token_id)
        self.samplings.append(
            replace(
                self.samplings[0],
                uniform=self.branch.uniform(self._numbers),
                token_counts=self._counts(token_id),
                allowed=mask,
            )
        )
        self._numbers += self._ahead is None or not self._ahead.is_forced
        return True

    def _counts(self, token_id: int) -> dict[int, int]:
        counts = self.samplings[-1].token_counts
        if not self.branch.request.counts_tokens:
            return counts
        return {**counts, token_id: counts.get(token_id, 0) + 1}
