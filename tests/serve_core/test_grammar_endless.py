"""Grammars that force a text without end: an error, and no wait without end."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_tools import matcher_of, tokenizer
from hostile_grammars import gbnf, lark

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.serve.core.grammar import library
from mlc_llm.serve.core.grammar.matcher import MAX_FORCED


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (gbnf('root ::= "a" ws " b"\nws ::= " "*'), "a  "),
        (gbnf('root ::= a b\na ::= "x"*\nb ::= "x" "y"'), "xx"),
        (lark('start: /x*/ "xy"'), "xx"),
    ],
)
def test_a_text_without_end_is_an_error(
    wanted: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first word is read as far as it goes, so the second one never comes."""
    monkeypatch.setattr(library, "MAX_FORCED_BYTES", 200)
    matcher = matcher_of(wanted)
    with pytest.raises(RequestError, match="more than 200 bytes"):
        for token in text.encode():
            matcher.mask()
            matcher.accept(token)
        matcher.mask()


def test_one_at_the_beginning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_FORCED_BYTES", 200)
    with pytest.raises(InvalidField, match="more than 200 bytes"):
        matcher_of(lark('start: A "x"\nA: /x+/'))


def test_a_long_text_is_still_forced() -> None:
    text = "long text, " * 90
    forced = matcher_of(lark(f'start: "{text}" /[ab]/')).forced_tokens()
    assert text.startswith(tokenizer().decode(forced)) and len(forced) == MAX_FORCED
