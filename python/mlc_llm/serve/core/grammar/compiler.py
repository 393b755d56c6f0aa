"""Structured output: what the next token may be, so that the whole text follows a grammar.

An engine has a `GrammarCompiler`, a response format has a `Grammar`, a sequence has a
`GrammarMatcher`. Some formats take seconds to compile. So the thread that brings a request compiles
its grammar, before the engine's thread sees the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.response_format import RequestResponseFormat
from mlc_llm.serve.core.grammar.cache import Cache
from mlc_llm.serve.core.grammar.matcher import Grammar
from mlc_llm.serve.core.grammar.text import field_of, library_text
from mlc_llm.serve.core.grammar.vocabulary import Vocabulary
from mlc_llm.tokenizers import Tokenizer

MAX_CACHE_BYTES = 128 * 1024 * 1024


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
        """The grammar of a format that needs one; at least one token can begin it.

        A format is compiled once while its grammar, or its refusal, is remembered. That takes up to
        seconds: other threads run meanwhile, but only one compiles at a time. Raises `InvalidField`
        with the part of the format and the reason.
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
        """Compile this grammar again for the next request that wants it."""
        self._cache.drop(grammar.wanted, grammar)

    def _compile(self, wanted: RequestResponseFormat) -> Grammar | _Refusal:
        try:
            text = library_text(wanted, self._tokenizer.split_control)
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
            return Grammar(wanted, text, self._vocabulary, self.forget)
        except InvalidField as error:
            return _Refusal(self._blamed(wanted) or error)

    def _blamed(self, wanted: RequestResponseFormat) -> InvalidField | None:
        """Why a part of a grammar is refused when it stands alone. None if all are accepted."""
        for part in () if wanted.grammar is None else wanted.grammar.parts:
            try:
                text = library_text(part.form, self._tokenizer.split_control)
                if self._vocabulary is not None:
                    Grammar(part.form, text, self._vocabulary, self.forget)
            except InvalidField as error:
                return InvalidField(field_of(part), error.value, error.allowed)
        return None


class _Refusal:
    """Why a format was refused. It keeps the beginning of the value only, which may be large."""

    cost = 4096

    def __init__(self, error: InvalidField) -> None:
        self._field, self._value, self._allowed = error.field, repr(error.value)[:80], error.allowed

    def error(self) -> InvalidField:
        return InvalidField(self._field, _Shown(self._value), self._allowed)


class _Shown(str):
    """The beginning of a value, printed as it is."""

    def __repr__(self) -> str:
        return str(self)
