"""Grammars made to hurt: each is refused or followed, in bounded time and memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hostile_grammars import hostile
from hostile_runner import MOST_BYTES, Run, measured

REFUSED = {
    "enum beyond the limit": "more than 10000 values in enum",
    "5000 optional properties": "more than 1000 properties",
    "200-deep object": "nested more than 200 levels",
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
    "embedded schema with a remote reference": "a reference stays in the schema",
    "embedded self reference": "no text satisfies it",
    "gbnf circle": "no text satisfies it",
    "gbnf that is not one": "Expected name",
    "gbnf deep parentheses": "at most 16384 characters",
    "gbnf of many rules": "at most 16384 characters",
    "10 MB schema": "0 to 262144 characters",
    "10 MB of brackets": "0 to 262144 characters",
    "100,000 properties": "0 to 262144 characters",
    "embedded 3,000 properties": "more than 1000 properties",
    "many embedded schemas": "at most 128 schemas",
    "huge const": "a value of more than 16384",
    "const of many keys": "a value of more than 16384",
    "number of 10,000 digits": "Failed to parse JSON",
    "optional letters": "at most 1000 optional parts",
    "optional unicode classes": "at most 1000 optional parts",
    "empty alternatives": "at most 1000 optional parts",
    "stars": "at most 1000 optional parts",
    "optional letters in a pattern": "at most 1000 optional parts",
    "optional terminals": "at most 1000 optional parts",
    "doubling terminals": "at most 1000 optional parts",
}
"""Name -> what the refusal says. Any of the others may be refused as well, or be followed."""


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return measured(dict(hostile()))


@pytest.mark.parametrize("name", [name for name, _ in hostile()])
def test_a_hostile_grammar_is_refused_or_followed_within_its_bounds(
    name: str, runs: dict[str, Run]
) -> None:
    """The system ends a process that takes more processor time than the bound."""
    run = runs[name]
    assert not run.died, run
    assert run.bytes < MOST_BYTES
    assert "\n" not in run.said and len(run.said) < 600
    if run.is_refused:
        assert "response_format" in run.said or "Failed to parse JSON of schema" in run.said
    elif run.said:
        assert "the grammar cannot be used" in run.said
    if name in REFUSED:
        assert run.is_refused and re.search(REFUSED[name], run.said), run.said or "accepted"


@pytest.mark.slow
def test_the_same_with_the_vocabulary_of_the_default_model(default_model: Path) -> None:
    for name, run in measured(dict(hostile()), str(default_model)).items():
        assert not run.died and run.bytes < MOST_BYTES, (name, run)


def test_what_a_child_does_is_seen() -> None:
    """The bounds are real: a process that goes beyond one is reported."""
    assert measured({"a": {"type": "text"}})["a"].died


def test_every_refusal_named_here_is_of_the_corpus() -> None:
    assert REFUSED.keys() <= {name for name, _ in hostile()}
