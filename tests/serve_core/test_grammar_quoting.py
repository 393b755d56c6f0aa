"""Texts in JSON: what patterns, formats and names of properties mean when they are quoted."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grammar_tools import EndlessTokenizer, allowed_ids, response_format
from hostile_grammars import lark, schema
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField
from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
from mlc_llm.serve.core.grammar.patterns import kept_pattern

BYTES = GrammarCompiler(EndlessTokenizer(), 256, [])  # type: ignore[arg-type]


def accepts(wanted: dict[str, Any], text: str) -> bool:
    matcher = BYTES.compile(response_format(wanted)).matcher()
    for token in text.encode():
        if matcher.is_finished or token not in allowed_ids(matcher.mask()):
            return False
        matcher.accept(token)
    return matcher.is_finished or matcher._library.is_accepting()


def text_of(pattern: str) -> dict[str, Any]:
    return schema({"type": "string", "pattern": pattern})


WITHOUT_QUOTES = [r'^[^"\\]*$', r'^[^"\n\\]+$', r'^(?:[^"\\]|\[)*$', r"^\P{Po}*$", r'^[^\]"\\]*$']


@pytest.mark.parametrize("pattern", WITHOUT_QUOTES)
def test_a_class_that_excludes_a_quote_excludes_it_in_json(pattern: str) -> None:
    for value in ('"', "\\", 'a"b', "a\\", "\\\\"):
        assert not accepts(text_of(pattern), json.dumps(value)), value
    for value in ("a", "a b", "a\tb", "ä[", "\x01"):
        assert accepts(text_of(pattern), json.dumps(value, ensure_ascii=False)), value


def test_the_same_for_names_of_properties_and_in_lark() -> None:
    value = {"type": "object", "patternProperties": {'^[^"]*$': {"type": "integer"}}}
    value |= {"additionalProperties": {"type": "string"}}
    for wanted in (schema(value), lark(f"start: %json {json.dumps(value)}")):
        assert accepts(wanted, '{"a": 1}') and accepts(wanted, '{"\\"": "x"}')
        assert not accepts(wanted, '{"\\"": 1}')
    inner = {"type": "string", "pattern": '^[^"]*$'}
    assert not accepts(lark(f"start: %json {json.dumps(inner)}"), '"\\""')


CLASSES = st.lists(st.sampled_from(["a", "-", "]", '"', "\\", "^", "\n", "ä", "\x01"]), max_size=4)


@given(CLASSES, st.booleans(), st.sampled_from(["a", "b", '"', "\\", "]", "^", "\n", "ä", "\x01"]))
def test_classes_mean_in_json_what_they_mean(letters: list[str], negated: bool, one: str) -> None:
    if not letters:
        return
    inside = "".join(re.escape(letter) for letter in letters)
    pattern = f"^[{'^' if negated else ''}{inside}]$"
    found = accepts(text_of(pattern), json.dumps(one, ensure_ascii=False))
    assert found == ((one in letters) != negated)


def test_what_a_pattern_becomes() -> None:
    assert kept_pattern(r"^[a-z]+\d[.]$") == r"^[a-z]+\d[.]$"
    assert kept_pattern(r"\[^x\]") == r"\[^x\]"
    assert kept_pattern(r'[^"]+a') == r'[[^"]--\x00]+a'
    assert kept_pattern("[^a[^b]]") == r"[[^a[^b]]--\x00]"
    assert kept_pattern("[^a") == "[^a"


OPEN = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "\n": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
}


@pytest.mark.parametrize("where", ["schema", "lark"])
def test_a_name_has_one_spelling(where: str) -> None:
    wanted = schema(OPEN) if where == "schema" else lark(f"start: %json {json.dumps(OPEN)}")
    for text in ('{"\\u0061": "x"}', '{"\\u000a": "x"}', '{"a": "x"}', '{"a": 1, "\\u0061": "x"}'):
        assert not accepts(wanted, text), text
    for text in ('{"a": 1, "\\n": 2, "b": "x"}', '{"\\"": "\\\\ä\\t"}', '{"ä": "x"}'):
        assert accepts(wanted, text), text


def test_closed_objects_have_all_control_characters() -> None:
    closed = {**OPEN, "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    assert accepts(schema(closed), '{"a": "\\u001b"}')


def test_values_that_need_another_spelling_are_refused_beside_open_objects() -> None:
    for value in ({"enum": [1, ["\x7f"]]}, {"const": {"a": "\x1b"}}):
        wanted = {**OPEN, "properties": {"b": value}}
        key = next(iter(value))
        with pytest.raises(InvalidField, match=f"response_format.schema {key}") as caught:
            accepts(schema(wanted), "")
        assert "additionalProperties" in str(caught.value)
        assert not accepts(schema({**wanted, "additionalProperties": False}), '{"c": 1}')


def test_more_unlisted_properties_than_one_cannot_be_asked_for() -> None:
    value: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert accepts(schema({**value, "minProperties": 2}), '{"a": 1, "b": 2}')
    assert not accepts(schema({**value, "minProperties": 2}), '{"a": 1}')
    with pytest.raises(InvalidField, match="minProperties"):
        accepts(schema({**value, "minProperties": 3}), "")


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "2023-02-28", "2023-12-31", "1999-10-30"],
            ["2023-02-29", "1900-02-29", "2100-02-29", "2024-02-30", "2024-04-31"],
        ),
        ("time", ["23:59:59Z", "10:00:00.5-07:30"], ["23:59:60Z", "10:00:60+07:30"]),
        (
            "date-time",
            ["2024-02-29T10:00:00Z", "2023-11-30t10:00:59.25+01:00"],
            ["2023-02-29T10:00:00Z", "2024-02-29T10:00:60Z"],
        ),
    ],
)
def test_days_and_seconds_that_exist(form: str, right: list[str], wrong: list[str]) -> None:
    for more in ({}, {"pattern": "^."}, {"pattern": "^.", "allOf": [{"minLength": 3}]}):
        wanted = schema({"type": "string", "format": form, **more})
        assert all(accepts(wanted, json.dumps(value)) for value in right)
        assert not any(accepts(wanted, json.dumps(value)) for value in wrong)
