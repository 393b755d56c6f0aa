"""Structured output: what the next token may be so that the whole text follows a grammar.

An engine has a `GrammarCompiler`, a response format a `Grammar`, a branch a `GrammarMatcher`.
Compiling may take seconds for what strangers write, so it is done by the thread that brings the
request, before the engine's thread sees it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.protocol.response_format import RequestResponseFormat
from mlc_llm.serve.core.grammar_cache import Cache
from mlc_llm.serve.core.grammar_stack import on_deep_stack
from mlc_llm.serve.core.grammar_text import field_and_text, library_text, one_line
from mlc_llm.serve.core.grammar_vocabulary import Vocabulary
from mlc_llm.tokenizers import Tokenizer

MAX_CACHE_BYTES = 128 * 1024 * 1024
MAX_ITEMS_IN_ROW = 6000
"""An object of 1,000 optional properties needs 4,000."""
MAX_GRAMMAR_SIZE = 150_000
MAX_FORCED = 256
MAX_LEXER_STATES = 100_000
"""About 1 KB each."""

_BASE_COST = 128 * 1024
_COST_PER_CHAR = 200
"""Bytes a compiled grammar holds, per character of its text: measured at 40 to 195."""
_COST_PER_SECOND = 200 * 1024 * 1024
_WARM_SECONDS = 200e-6
"""A mask that takes longer has made the lexer grow, by 160 MB a second where it grew fastest."""

Result = TypeVar("Result")


class GrammarCompiler:
    """Compiles response formats for one vocabulary; safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        end_ids: Iterable[int],
        *,
        max_cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        """vocab_size: rows of the model's output. end_ids: the tokens that end an answer."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = frozenset(end_ids) | tokenizer.eos_token_ids
        self._vocabulary: Vocabulary | None = None
        self._compiling = Lock()
        self._cache: Cache[Grammar | _Refusal] = Cache(max_cache_bytes)

    @property
    def cache_cost(self) -> int:
        """Bytes that the remembered grammars may hold by now, at most."""
        return self._cache.cost

    def compile(self, wanted: RequestResponseFormat) -> Grammar:
        """The grammar of a format that needs one, which at least one token can begin.

        Compiled at most once while it is remembered, and so is a refusal. Takes up to seconds:
        other threads run meanwhile, but compile one after another. Raises `InvalidField` naming
        the part of the format and why it is refused.
        """
        assert wanted.needs_grammar
        found = self._cache.get(wanted)
        if found is None:
            with self._compiling:
                found = self._cache.get(wanted)
                if found is None:
                    found = self._compile(wanted)
                    self._cache.put(wanted, found)
        if isinstance(found, _Refusal):
            raise found.error()
        return found

    def forget(self, grammar: Grammar) -> None:
        """Compile a grammar anew for the next request that wants it."""
        self._cache.drop(grammar.wanted, grammar)

    def _compile(self, wanted: RequestResponseFormat) -> Grammar | _Refusal:
        try:
            text = library_text(wanted, self._tokenizer.split_control)
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
            return Grammar(wanted, text, self._vocabulary, self.forget)
        except InvalidField as error:
            return _Refusal(error)


class _Refusal:
    """Remembers why a format was refused, in words of its own: it must not keep a large value."""

    cost = 4096

    def __init__(self, error: InvalidField) -> None:
        self._field, self._value, self._allowed = error.field, repr(error.value)[:80], error.allowed

    def error(self) -> InvalidField:
        return InvalidField(self._field, _Shown(self._value), self._allowed)


class _Shown(str):
    """The beginning of a value, printed as it is."""

    def __repr__(self) -> str:
        return str(self)


class Grammar:
    """One compiled grammar; all its matchers share what its lexer has learnt."""

    def __init__(
        self,
        wanted: RequestResponseFormat,
        text: str,
        vocabulary: Vocabulary,
        forget: Callable[[Grammar], None],
    ) -> None:
        """Raises `InvalidField` when the text is no grammar or nothing can satisfy it."""
        self.wanted = wanted
        self.vocabulary = vocabulary
        self.forget = forget
        self.cost = _BASE_COST + _COST_PER_CHAR * len(text)
        self._text = text
        self._start = self.fresh()
        try:
            call(self._start, lambda: None)
            # Some grammars that no text satisfies are found out here only.
            mask = call(self._start, self._start.compute_bitmask)
            self._first_forced = call(self._start, self._start.compute_ff_tokens)
        except RequestError as error:
            raise InvalidField(*field_and_text(wanted), str(error)) from None
        forced = self._first_forced
        self.first_mask = vocabulary.only(forced[0]) if forced else vocabulary.packed(mask)

    def matcher(self) -> GrammarMatcher:
        """A matcher that stands before the first token."""
        return GrammarMatcher(self, self._start.deep_copy(), self.first_mask, self._first_forced)

    def fresh(self) -> LLMatcher:
        """The library's matcher, compiled again, with a lexer that nobody shares."""
        limits = LLParserLimits(
            max_items_in_row=MAX_ITEMS_IN_ROW,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )
        vocabulary, text = self.vocabulary.library, self._text
        return on_deep_stack(lambda: LLMatcher(vocabulary, text, log_level=0, limits=limits))

    def charge(self, seconds: float) -> None:
        """Count the memory that so much work may have taken."""
        if seconds > _WARM_SECONDS:
            self.cost += int(_COST_PER_SECOND * seconds)


class GrammarMatcher:
    """Where one branch stands in its grammar.

    Where the grammar forces the text, it forces the tokens too: those that the tokenizer would
    write. No other is allowed there, so that an answer is the same whether these tokens are added
    unasked or chosen by the model one by one.
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
        """What comes next whatever the model says, as far as it was asked for."""
        self._is_asked = True
        """Whether it was asked for here: an empty one means then that nothing is forced."""

    @property
    def is_finished(self) -> bool:
        """The text is whole and nothing can follow. Raises `RequestError` as `mask` does."""
        if self._library.is_stopped():
            return True
        # Without a token that ends an answer, an empty mask is all that is left to say it.
        return not any(self.mask()) and self._library.is_accepting()

    def ends(self, token_id: int) -> bool:
        """Whether the token ends an answer and belongs to no text."""
        return token_id in self._grammar.vocabulary.end_ids

    def mask(self) -> bytes:
        """The tokens that may come next: a bit each, 32-bit words, the lowest bit first.

        Covers the model's whole output, ceil(vocab_size / 32) words; what the tokenizer does not
        have is forbidden. Raises `RequestError` when the grammar has become too complex to follow.
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
        """The only token that may come next, where the text is forced. It depends on the tokens so
        far and on nothing else. Raises `RequestError` as `mask` does."""
        if not self._forced and not self._is_asked:
            # Else a long text would be cut into tokens anew, and differently, for each of them.
            self._forced.extend(self._tried(lambda library: library.compute_ff_tokens()))
            self._is_asked = True
        return self._forced[0] if self._forced else None

    def forced_tokens(self) -> list[int]:
        """The tokens that the model's tokenizer would write next whatever the model says, or the
        first of them where there are many."""
        self.forced_token()
        return list(islice(self._forced, MAX_FORCED))

    def ahead(self, may_jump: bool) -> GrammarAhead:
        """A copy that can go on over tokens which may never come. may_jump: whether text that the
        grammar forces is added without asking the model."""
        mask = self.mask()
        return GrammarAhead(
            self._grammar, self._library.deep_copy(), mask, deque(self._forced), may_jump
        )

    def _tried(self, work: Callable[[LLMatcher], Result]) -> Result:
        """The answer of the library.

        The lexer is shared and limited, so what other branches made of it may be why it fails:
        then all is done again with a lexer of this branch's own.
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


class GrammarAhead:
    """Goes ahead of a matcher, over guessed tokens. It fails without a word: the matcher itself
    comes by later, and can start anew where this one cannot."""

    def __init__(
        self,
        grammar: Grammar,
        library: LLMatcher,
        mask: bytes,
        forced: deque[int],
        may_jump: bool,
    ) -> None:
        self._grammar = grammar
        self._library = library
        self._mask = mask
        self._forced = forced
        self._may_jump = may_jump

    @property
    def is_forced(self) -> bool:
        """Whether the text leaves one token only for the next place."""
        return bool(self._forced)

    def accept(self, token_id: int) -> bytes | None:
        """Go on behind a token; the mask of the one behind it. None, and no way on, where the token
        is not allowed, or where behind it nothing is left to choose."""
        is_allowed = self._mask[token_id >> 3] >> (token_id & 7) & 1
        if not is_allowed or token_id in self._grammar.vocabulary.end_ids:
            return None
        start = time.perf_counter()
        try:
            mask = call(self._library, lambda: self._go_on(token_id))
        except RequestError:
            return None
        finally:
            self._grammar.charge(time.perf_counter() - start)
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
            self._forced.extend(library.compute_ff_tokens())
        vocabulary = self._grammar.vocabulary
        if not self._forced:
            return vocabulary.packed(library.compute_bitmask())
        return None if self._may_jump else vocabulary.only(self._forced[0])


def call(library: LLMatcher, work: Callable[[], Result]) -> Result:
    """The answer of the library, which reports a failure in its state and at times by raising.

    Raises `RequestError` with its reason.
    """
    try:
        result = work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        raise RequestError(_reason(error)) from None
    if library.is_error():
        raise RequestError(_reason(library.get_error()))
    return result


def _reason(error: object) -> str:
    reason = one_line(error)
    if reason.startswith("NoExtension"):
        reason = "no text satisfies it"
    return f"the grammar cannot be used: {reason}"
