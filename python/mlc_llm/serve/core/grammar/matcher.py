"""A compiled grammar, and how far one sequence has followed it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from llguidance import LLMatcher

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.protocol.response_format import RequestResponseFormat
from mlc_llm.serve.core.grammar.ahead import GrammarAhead
from mlc_llm.serve.core.grammar.library import Result, call, compile_text, forced_tokens
from mlc_llm.serve.core.grammar.text import field_and_text
from mlc_llm.serve.core.grammar.vocabulary import Vocabulary

MAX_FORCED = 256

_BASE_COST = 128 * 1024
_COST_PER_CHAR = 200
"""Bytes that a compiled grammar holds, per character of its text: measured at 40 to 195."""
_COST_PER_SECOND = 200 * 1024 * 1024
_WARM_SECONDS = 200e-6
"""A mask that takes longer has made the lexer grow: by 160 MB a second in the worst case."""


class Grammar:
    """One compiled grammar. All its matchers share what its lexer has learnt."""

    def __init__(
        self,
        wanted: RequestResponseFormat,
        text: str,
        vocabulary: Vocabulary,
        forget: Callable[[Grammar], None],
    ) -> None:
        """Raises `InvalidField` when the text is no grammar or no text satisfies it."""
        self.wanted = wanted
        self.vocabulary = vocabulary
        self.forget = forget
        self.cost = _BASE_COST + _COST_PER_CHAR * len(text)
        """Bytes that it may hold by now."""
        self._text = text
        written = wanted.grammar
        self._has_words = written is not None and written.syntax != "regex"
        """Several of them may follow each other: see `forced_tokens`."""
        self._start = self.fresh()
        try:
            call(self._start, lambda: None)
            self._first_forced = call(self._start, lambda: self.forced(self._start))
            # Only the first mask shows that no text satisfies some grammars.
            mask = call(self._start, self._start.compute_bitmask)
        except RequestError as error:
            raise InvalidField(*field_and_text(wanted), str(error)) from None
        forced = self._first_forced
        self.first_mask = vocabulary.only(forced[0]) if forced else vocabulary.packed(mask)

    def matcher(self) -> GrammarMatcher:
        """A matcher that stands before the first token."""
        return GrammarMatcher(self, self._start.deep_copy(), self.first_mask, self._first_forced)

    def fresh(self) -> LLMatcher:
        """The library's matcher, compiled again, with a lexer that no other matcher shares."""
        return compile_text(self._text, self.vocabulary)

    def forced(self, library: LLMatcher) -> list[int]:
        """The tokens that must come next at the place of `library`; for use inside of `call`."""
        if self._has_words:
            return forced_tokens(library, self.vocabulary)
        return library.compute_ff_tokens()

    def charge(self, seconds: float) -> None:
        """Count the memory that a call of so many seconds may have taken."""
        if seconds > _WARM_SECONDS:
            self.cost += int(_COST_PER_SECOND * seconds)


class GrammarMatcher:
    """How far one sequence has followed its grammar.

    Where the grammar forces the text, it forces the tokens too: those that the tokenizer would
    write. No other token is allowed there. So an answer is the same whether these tokens are added
    at once or the model chooses them one by one.
    """

    def __init__(
        self, grammar: Grammar, library: LLMatcher, mask: bytes, forced: Sequence[int]
    ) -> None:
        """mask, forced: of the first token, as `mask` and `forced_tokens` give them."""
        self._grammar = grammar
        self._library = library
        self._is_own = False
        self._tokens: list[int] = []
        self._mask: bytes | None = mask
        self._forced: deque[int] = deque(forced)
        """The tokens that come next whatever the model says, as far as they are computed."""
        self._is_asked = True
        """`_forced` was computed for this position: if it is empty, nothing is forced."""

    @property
    def is_finished(self) -> bool:
        """The text is whole and nothing can follow. Raises `RequestError` as `mask` does."""
        if self._library.is_stopped():
            return True
        # Without a token that ends an answer, only an empty mask shows the end.
        return not any(self.mask()) and self._library.is_accepting()

    def ends(self, token_id: int) -> bool:
        """The token ends an answer and belongs to no text."""
        return token_id in self._grammar.vocabulary.end_ids

    def mask(self) -> bytes:
        """The tokens that may come next: a bit each, 32-bit words, the lowest bit first.

        It has ceil(vocab_size / 32) words for the model's whole output; tokens that the tokenizer
        does not have are forbidden. Raises `RequestError` when the grammar has become too complex.
        """
        if self._mask is None:
            vocabulary, forced = self._grammar.vocabulary, self.forced_token()
            if forced is not None:
                self._mask = vocabulary.only(forced)
            else:
                mask = self._tried(lambda library: library.compute_bitmask())
                self._mask = vocabulary.packed(mask)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Go on behind a token. Raises `RequestError` for one that the grammar does not allow."""
        self._tried(lambda library: library.consume_token(token_id))
        self._tokens.append(token_id)
        self._mask = None
        if self._forced and self._forced.popleft() != token_id:
            self._forced.clear()
        self._is_asked = False

    def forced_token(self) -> int | None:
        """The only token that may come next, where the text is forced; else None.

        It depends only on the tokens so far. Raises `RequestError` as `mask` does.
        """
        if not self._forced and not self._is_asked:
            # All at once: a long text cut again behind each token would give other tokens.
            self._forced.extend(self._tried(self._grammar.forced))
            self._is_asked = True
        return self._forced[0] if self._forced else None

    def forced_tokens(self) -> list[int]:
        """The tokens that the tokenizer would write next whatever the model says, at most
        `MAX_FORCED` of them."""
        self.forced_token()
        return list(islice(self._forced, MAX_FORCED))

    def ahead(self, may_jump: bool) -> GrammarAhead:
        """A copy that can go on over draft tokens.

        may_jump: tokens that the grammar forces are added without a question to the model.
        """
        mask = self.mask()  # may compile the library's matcher again
        return GrammarAhead(
            self._library.deep_copy(),
            self._grammar.vocabulary,
            self._grammar.charge,
            self._grammar.forced,
            mask=mask,
            forced=deque(self._forced),
            may_jump=may_jump,
        )

    def _tried(self, work: Callable[[LLMatcher], Result]) -> Result:
        """The result of the library.

        The lexer is shared and limited, so other sequences may have filled it. After a failure the
        work is done again with a lexer for this sequence alone.
        """
        start = time.perf_counter()
        try:
            return call(self._library, lambda: work(self._library))
        except RequestError:
            if self._is_own:
                raise
        finally:
            self._grammar.charge(time.perf_counter() - start)
        self._grammar.forget(self._grammar)
        self._library, self._is_own = self._grammar.fresh(), True
        return call(self._library, lambda: self._again(work))

    def _again(self, work: Callable[[LLMatcher], Result]) -> Result:
        self._library.consume_tokens(self._tokens)
        return work(self._library)
