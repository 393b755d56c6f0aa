"""Calls of the grammar library: bounded, on a deep stack, with every failure as an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits

from mlc_llm.errors import RequestError
from mlc_llm.serve.core.grammar.deep_stack import on_deep_stack
from mlc_llm.serve.core.grammar.text import one_line
from mlc_llm.serve.core.grammar.vocabulary import Vocabulary

MAX_ITEMS_IN_ROW = 6000
"""An object of 1,000 optional properties needs 4,000."""
MAX_GRAMMAR_SIZE = 150_000
MAX_LEXER_STATES = 100_000
"""A state takes about 1 KB."""
MAX_FORCED_BYTES = 4096
"""Of a text that a written grammar forces at once."""

Result = TypeVar("Result")


def compile_text(text: str, vocabulary: Vocabulary) -> LLMatcher:
    """The library's matcher of a grammar, before the first token, with a lexer of its own.

    A text that is no grammar shows in the first `call`.
    """
    limits = LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
    return on_deep_stack(lambda: LLMatcher(vocabulary.library, text, log_level=0, limits=limits))


def call(library: LLMatcher, work: Callable[[], Result]) -> Result:
    """The result of `work`, which uses `library`.

    The library reports a failure in its state, and sometimes by raising. Both become a
    `RequestError` with its reason.
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


def forced_tokens(library: LLMatcher, vocabulary: Vocabulary) -> list[int]:
    """The tokens of the text that must come next; for use inside of `call`.

    The library asks for a text without end, and never returns, where a word that was read as far as
    it goes leaves nothing for what follows it: behind two spaces of `" "* " b"` come more spaces
    only. So a copy goes ahead, byte by byte: a mask would ask for that text too. Raises
    `RequestError` for such a text.
    """
    ahead = library.deep_copy()
    for _ in range(MAX_FORCED_BYTES):
        token = None if ahead.is_stopped() else vocabulary.only_byte(ahead)
        if token is None:
            return library.compute_ff_tokens()
        ahead.consume_token(token)
    raise RequestError(f"it forces a text of more than {MAX_FORCED_BYTES} bytes, perhaps endless")


def _reason(error: object) -> str:
    reason = one_line(error)
    if reason.startswith("NoExtension"):
        reason = "no text satisfies it"
    return f"the grammar cannot be used: {reason}"
