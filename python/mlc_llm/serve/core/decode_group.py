"""Running sequences that all decode, and whose choices depend on no token as such.

From step to step nothing changes in their rows but a token, a place and a random number. So what
has to be known of all of them is found once, when the group is made: whose end by length comes
first, which token could stop one, when how many need a page, which random numbers come next. All
of a group get their tokens in the same steps, so its first sequence tells how far all of them are.
"""

from __future__ import annotations

from collections import abc

from mlc_llm.runtime.batch import GREEDY, NO_ADAPTER
from mlc_llm.runtime.decode_rows import DecodeRows, Numbers, SameRows, Uniforms
from mlc_llm.serve.core.sampling import lasting_sampling
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.sequence_state import Status

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
        self._generated = sequences[0].generated
        """The tokens that tell how far all are."""
        self._start = known = len(self._generated)
        self._last = known + min(one.left(longest) for one in sequences)
        """With so many, a sequence ends by its length."""
        self._stops = frozenset().union(*{one.request.stop_token_ids for one in sequences})
        self.special = [i for i, one in enumerate(sequences) if not _shows_tokens(one)]
        """Rows of which more is asked than that their tokens are shown."""
        self._on_page = [0] * page_size
        """How many sequences had so many tokens on their last page at first."""
        for one in sequences:
            self._on_page[one.progress.computed % page_size] += 1
        self._uniforms: list[Uniforms] = []
        self._drawn_at = 0

    @property
    def has_lost_its_first(self) -> bool:
        """The sequence that tells how far all are has ended, while a step was under way."""
        return self.sequences[0].progress.status is not Status.RUNNING

    def rows(self) -> DecodeRows:
        """Of a step in which all tokens are known."""
        tokens = [one.generated[-1] for one in self.sequences]
        uniforms = self._numbers(0) if self.same.is_drawn else None
        return DecodeRows(self.same, uniforms, tokens)

    def rows_behind(self, chosen_by: Numbers | None = None) -> DecodeRows:
        """Of the step behind one that is under way. chosen_by: the rows there that choose these
        tokens; None: all, in the same order."""
        rows = self.same.indices if chosen_by is None else chosen_by
        uniforms = self._numbers(1) if self.same.is_drawn else None
        return DecodeRows(self.same, uniforms, chosen_by=rows)

    def pages_needed(self, ahead: int = 0) -> int:
        """By the next step, or by the one `ahead` behind it."""
        more = len(self._generated) - self._start + ahead
        return self._on_page[-more % self._page_size]

    def noteworthy(self, tokens: abc.Sequence[int]) -> abc.Sequence[int]:
        """Rows that need more than that these tokens are shown: some of them end."""
        found = self.special
        if not self._stops.isdisjoint(tokens):
            pairs = enumerate(zip(self.sequences, tokens, strict=True))
            found = found + [i for i, (one, t) in pairs if t in one.request.stop_token_ids]
        if len(self._generated) + 1 >= self._last:
            found = found + self._ending()
        return found if found is self.special else sorted({*found})

    def may_end(self) -> bool:
        """Some sequence ends by its length with its next token."""
        return len(self._generated) + 1 >= self._last

    def _ending(self) -> list[int]:
        """Rows that end by their length with their next tokens."""
        return [i for i, one in enumerate(self.sequences) if one.left(self._longest) <= 1]

    def check_integrity(self) -> None:
        """AssertionError unless what it has found is true."""
        assert all(one.is_decoding and one.request.is_free for one in self.sequences)
        left = min(one.left(self._longest) for one in self.sequences)
        assert len(self._generated) + left == self._last, "the first end by length"
        full = [one for one in self.sequences if one.progress.computed % self._page_size == 0]
        assert self.pages_needed() == len(full), "pages for the next step"
        for i, one in enumerate(self.sequences):
            if one.request.config.temperature > GREEDY:
                assert self._numbers(0)[i] == one.uniform(), "random numbers"

    def _numbers(self, ahead: int) -> Uniforms:
        """The random numbers of the next tokens, or of those `ahead` behind them."""
        known = len(self._generated)
        at = known + ahead - self._drawn_at
        if at >= len(self._uniforms):
            self._drawn_at, at = known, ahead
            drawn = [one.uniforms(DRAWN_AT_ONCE) for one in self.sequences]
            self._uniforms = list(zip(*drawn, strict=True))
        return self._uniforms[at]


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
