"""Grammars made to hurt: each is refused or followed, in bounded time and memory."""

from __future__ import annotations

import re
import resource
import sys
import time
from typing import Any

import pytest
from grammar_tools import compiler, matcher_of, random_tokens, response_format
from hostile_grammars import hostile, regex, schema

from mlc_llm.errors import RequestError, UserError

MOST_SECONDS = 5.0
MOST_BYTES = 300 * 2**20

REFUSED = {
    "enum beyond the limit": "more than 10000 values in enum",
    "5000 optional properties": "more than 1000 properties",
    "200-deep object": "nested more than 64 levels",
    "reference to itself": "no text satisfies it",
    "circle of references": "no text satisfies it",
    "reference to nowhere": "does not exist",
    "remote reference": "a reference stays in the schema",
    "file reference": "a reference stays in the schema",
    "empty range": "minimum .5. is greater than maximum .4.",
    "false": "Unsatisfiable",
    "empty enum": "Unsatisfiable",
    "impossible allOf": "incompatible types",
    "not": "Unimplemented keys",
    "wrong type name": "strnig",
    "type of wrong type": "type must be",
    "properties of wrong type": "properties must be an object",
    "lone surrogate": "hex escape",
    "look-ahead in pattern": "look-around",
    "back reference in pattern": "backreferences are not supported",
    "unclosed pattern": "unclosed group",
    "look-behind": "look-around",
    "nothing matches": "no text satisfies it",
    "start: start": "no text satisfies it",
    "undefined rule": "nobody",
    "no start": "no start rule",
    "unclosed string": "lexer error",
    "embedded schema with a remote reference": "not present",
    "embedded self reference": "no text satisfies it",
    "gbnf circle": "no text satisfies it",
    "gbnf that is not one": "Expected name",
    "gbnf deep parentheses": "at most 16384 characters",
    "gbnf of many rules": "at most 16384 characters",
}
"""Name -> what the refusal says. Any of the others may be refused as well, or be followed."""


def peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize(("name", "value"), list(hostile()), ids=[n for n, _ in hostile()])
def test_a_hostile_grammar_is_refused_or_followed(name: str, value: dict[str, Any]) -> None:
    compiler().compile(response_format(schema({})))
    memory, start = peak_memory(), time.monotonic()
    said = ""
    try:
        random_tokens(matcher_of(value), seed=1, limit=100)
    except UserError as error:
        said = str(error)
        assert "response_format" in said and "\n" not in said and len(said) < 600
    except RequestError as error:
        assert "the grammar cannot be used" in str(error)
    assert time.monotonic() - start < MOST_SECONDS
    assert peak_memory() - memory < MOST_BYTES
    if name in REFUSED:
        assert re.search(REFUSED[name], said), said or "accepted"
    assert random_tokens(matcher_of(regex("[ab]{3}")), seed=1) is not None, "the compiler lives"


def test_every_refusal_named_here_is_of_the_corpus() -> None:
    assert REFUSED.keys() <= {name for name, _ in hostile()}
