"""A copy of a matcher that goes on over draft tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from llguidance import LLMatcher

from mlc_llm.errors import RequestError
from mlc_llm.serve.core.grammar.library import call
from mlc_llm.serve.core.grammar.vocabulary import Vocabulary


class GrammarAhead:
    """Goes ahead of a matcher, over draft tokens.

    It reports no failure: the matcher itself comes to the same tokens later, and can compile its
    grammar again where this copy cannot.
    """

    def __init__(
        self,
        library: LLMatcher,
        vocabulary: Vocabulary,
        charge: Callable[[float], None],
        ask: Callable[[LLMatcher], list[int]],
        *,
        mask: bytes,
        forced: deque[int],
        may_jump: bool,
    ) -> None:
        """library: a copy for this object alone. charge: gets the seconds of each call. ask: see
        `Grammar.forced`.

        mask: of the next token. forced: the tokens that come next whatever the model says.
        may_jump: forced tokens are added without a question to the model.
        """
        self._library = library
        self._vocabulary = vocabulary
        self._charge = charge
        self._ask = ask
        self._mask = mask
        self._forced = forced
        self._may_jump = may_jump

    @property
    def is_forced(self) -> bool:
        """The grammar leaves only one token for the next position."""
        return bool(self._forced)

    def accept(self, token_id: int) -> bytes | None:
        """Go on behind a token; returns the mask of the next one.

        None where the grammar does not allow the token, or leaves nothing to choose behind it.
        Then this object cannot go on.
        """
        is_allowed = self._mask[token_id >> 3] >> (token_id & 7) & 1
        if not is_allowed or token_id in self._vocabulary.end_ids:
            return None
        start = time.perf_counter()
        try:
            mask = call(self._library, lambda: self._go_on(token_id))
        except RequestError:
            return None
        finally:
            self._charge(time.perf_counter() - start)
        if mask is None or not any(mask):
            return None
        self._mask = mask
        return mask

    def _go_on(self, token_id: int) -> bytes | None:
        library = self._library
        if not library.consume_token(token_id) or library.is_stopped():
            return None
        if self._forced:
            self._forced.popleft()  # the mask allowed no other
        if not self._forced:
            self._forced.extend(self._ask(library))
        if not self._forced:
            return self._vocabulary.packed(library.compute_bitmask())
        return None if self._may_jump else self._vocabulary.only(self._forced[0])
