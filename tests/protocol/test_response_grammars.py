"""Grammars and structural tags as response formats."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.errors import UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest

TAG = {"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}


def tags(*structures: Any, triggers: Any = ("<f=",)) -> dict[str, Any]:
    return {"type": "structural_tag", "structures": list(structures), "triggers": list(triggers)}


def written(syntax: Any, definition: Any = "x") -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


@pytest.mark.parametrize(
    "value",
    [
        written("lark", 'start: "x"'),
        written("gbnf"),
        written("ebnf"),
        written("regex", ""),
        tags(TAG),
        tags(TAG, {"begin": "<f=b>", "schema": "true"}, triggers=["<f=a", "<f=b>"]),
    ],
)
def test_what_is_taken_comes_back_from_json(value: dict[str, Any]) -> None:
    config = GenerationConfig(response_format=value)
    assert config.response_format.needs_grammar
    assert GenerationConfig.from_json(config.asjson()) == config
    dumped = config.model_dump(mode="json", by_alias=True)["response_format"]
    assert GenerationConfig(response_format=dumped) == config


@pytest.mark.parametrize("syntax", ["regex", "ebnf", "gbnf", "lark"])
def test_a_short_form_is_the_long_one(syntax: str) -> None:
    short = GenerationConfig(response_format={"type": syntax, syntax: "x+"})
    assert short == GenerationConfig(response_format=written(syntax, "x+"))
    assert GenerationConfig.from_json(short.asjson()) == short
    message = {"role": "user", "content": "x"}
    request = {"messages": [message], "response_format": {"type": syntax, syntax: "x+"}}
    assert ChatCompletionRequest.parse(request).generation_config() == short


def test_only_fields_that_belong_to_the_type_are_written_out() -> None:
    def dumped(value: Any) -> set[str]:
        config = GenerationConfig(response_format=value)
        return set(config.model_dump(mode="json", by_alias=True)["response_format"])

    assert dumped({"type": "json_object"}) == {"type", "schema"}
    assert dumped(written("regex")) == {"type", "schema", "grammar"}
    assert dumped(tags(TAG)) == {"type", "schema", "structures", "triggers"}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (written("yacc"), "grammar.syntax = 'yacc'"),
        (written(3), "grammar.syntax = 3"),
        (written("lark", 3), "grammar.definition = 3"),
        (written("lark", "x" * 300_000), "grammar.definition"),
        ({"type": "grammar"}, "grammar"),
        ({"type": "grammar", "grammar": "x"}, "grammar = 'x'"),
        ({**written("lark"), "schema": "{}"}, "schema"),
        ({"type": "json_object", "grammar": {}}, "grammar"),
        ({"type": "text", "triggers": ["x"]}, "triggers"),
        ({"type": "structural_tag", "structures": [TAG]}, "triggers"),
        ({"type": "regex"}, 'key "regex" not found'),
        ({"type": "regex", "regex": 3}, "regex = 3"),
        ({"type": "regex", "pattern": "x"}, "pattern = 'x'.*type regex takes regex"),
        ({"type": "ebnf", "ebnf": "x", "schema": "{}"}, "schema.*type ebnf takes ebnf"),
        (tags(), "structures = \\[\\]"),
        (tags(TAG, triggers=["<g="]), "structures.0..begin = '<f=a>'"),
        (tags(TAG, triggers=[""]), "triggers.0. = ''"),
        (tags({**TAG, "begin": ""}), "begin = ''"),
        (tags({**TAG, "schema": [1]}), "schema = .1."),
        (tags({**TAG, "more": 1}), "more"),
        (tags(*[TAG] * 200), "structures"),
    ],
)
def test_what_is_wrong_is_named(value: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=f"response_format.*{named}"):
        GenerationConfig(response_format=value)
