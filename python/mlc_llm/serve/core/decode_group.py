"""Running sequences that all decode, and whose choices depend on no token as such.

From step to step nothing changes in their rows but a token, a place and a random number. So what
has to be known of all of them is found once, when the group is made: whose end by length comes
first, which token could stop one, when how many need a page, which random numbers come next. All
of a group get their tokens in the same steps, so its first sequence tells how far all of them are.
"""

from __future__ import annotations

from collections import Counter, abc

import numpy as np

from mlc_llm.runtime.batch import GREEDY, NO_ADAPTER
from mlc_llm.runtime.decode_rows import DecodeRows, Numbers, SameRows, Uniforms
from mlc_llm.serve.core.sampling import lasting_sampling
from mlc_llm.serve.core.sequence import Sequence

DRAWN_AT_ONCE = 16
"""Random numbers of each sequence."""


class DecodeGroup:
    """It holds as long as every step gives each of its running sequences a token."""

    def __init__(self, sequences: list[Sequence], longest: int, page_size: int) -> None:
        """longest: the most tokens of a sequence."""
        self.sequences, self._longest, self._page_size = sequences, longest, page_size
        self.same = SameRows(
            [_slot(one) for one in sequences],
            [lasting_sampling(one) for one in sequences],
            [_adapter(one) for one in sequences],
        )
        left = [left_of(one, longest) for one in sequences]
        self._first_end = sequences[left.index(min(left))]
        self._stops = frozenset().union(*{one.request.stop_token_ids for one in sequences})
        self.special = [i for i, one in enumerate(sequences) if not _shows_tokens(one)]
        """Rows of which more is asked than that their tokens are shown."""
        self._start = sequences[0].progress.computed
        self._on_page = Counter([one.progress.computed % page_size for one in sequences])
        """How many sequences have so many tokens on their last page."""
        self._uniforms: Uniforms = np.empty((0, len(sequences)))
        self._drawn_at = 0

    def rows(self) -> DecodeRows:
        """Of a step in which all tokens are known."""
        tokens = [one.generated[-1] for one in self.sequences]
        return DecodeRows(self.same, self._numbers(0), tokens=tokens)

    def rows_behind(self, chosen_by: Numbers | None = None) -> DecodeRows:
        """Of the step behind one that is under way. chosen_by: the rows there that choose these
        tokens; None: all, in the same order."""
        rows = self.same.indices if chosen_by is None else chosen_by
        return DecodeRows(self.same, self._numbers(1), chosen_by=rows)

    def pages_needed(self, ahead: int = 0) -> int:
        """By the next step, or by the one `ahead` behind it."""
        more = self.sequences[0].progress.computed - self._start + ahead
        return self._on_page[-more % self._page_size]

    def noteworthy(self, tokens: abc.Sequence[int]) -> abc.Sequence[int]:
        """Rows that need more than that these tokens are shown: some of them end."""
        found = self.special
        if not self._stops.isdisjoint(tokens):
            pairs = enumerate(zip(self.sequences, tokens, strict=True))
            found = found + [i for i, (one, t) in pairs if t in one.request.stop_token_ids]
        if self.may_end():
            found = found + self.ending()
        return found if found is self.special else sorted({*found})

    def may_end(self) -> bool:
        """Some sequence ends by its length with its next token."""
        return self._least_left <= 1

    def ending(self) -> list[int]:
        """Rows of those."""
        return [i for i, one in enumerate(self.sequences) if left_of(one, self._longest) <= 1]

    @property
    def _least_left(self) -> int:
        return left_of(self._first_end, self._longest)

    def check_integrity(self) -> None:
        """AssertionError unless what it has found is true."""
        assert all(one.is_decoding and one.request.is_free for one in self.sequences)
        assert min(left_of(one, self._longest) for one in self.sequences) == self._least_left
        full = [one for one in self.sequences if one.progress.computed % self._page_size == 0]
        assert self.pages_needed() == len(full), "pages for the next step"
        numbers = self._numbers(0)
        for i, one in enumerate(self.sequences):
            if one.request.config.temperature > GREEDY:
                assert numbers is not None and numbers[i] == one.uniform(), "random numbers"

    def _numbers(self, ahead: int) -> Uniforms | None:
        """The random numbers of the next tokens, or of those `ahead` behind them."""
        if not self.same.is_drawn:
            return None
        known = len(self.sequences[0].generated)
        at = known + ahead - self._drawn_at
        if at >= len(self._uniforms):
            self._drawn_at, at = known, ahead
            drawn = [one.uniforms(DRAWN_AT_ONCE) for one in self.sequences]
            self._uniforms = np.array(drawn).T.copy()
        numbers: Uniforms = self._uniforms[at]
        return numbers


def left_of(sequence: Sequence, longest: int) -> int:
    """Tokens that it may still get."""
    request, generated = sequence.request, len(sequence.generated)
    room, most = longest - len(request.prompt), request.config.max_tokens
    return (min(room, most) if most >= 0 else room) - generated


def _shows_tokens(sequence: Sequence) -> bool:
    """Each token is shown at once, and nothing else of the sequence or of others."""
    request = sequence.request
    is_alone = request.config.n == 1 and sequence.output.stops is None
    return is_alone and not request.config.logprobs and request.scores is None


def _slot(sequence: Sequence) -> int:
    assert sequence.progress.seq_id is not None
    return sequence.progress.seq_id


def _adapter(sequence: Sequence) -> int:
    adapter = sequence.request.adapter
    return NO_ADAPTER if adapter is None else adapter.slot
