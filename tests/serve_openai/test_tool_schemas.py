"""Every form of calls with schemas that say the type of an argument in one of many ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import Chat, jinja
from test_tool_matrix import FAMILIES, template

from mlc_llm.errors import InvalidField, UserError

PYTHON_FORMS = ("lfm2", "gorilla", "python")


def body(parameters: Any, **more: Any) -> dict[str, Any]:
    """A request that must call the function `f`."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}
    return {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}


def arguments(chat: Chat, tokens: Any) -> Any:
    (choice,) = chat.whole(tokens or []).choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    return json.loads(choice.message.tool_calls[0].function.arguments)


def needed(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}


SHORT = {"type": "string", "maxLength": 3}
TYPES: dict[str, tuple[Any, tuple[type, ...]]] = {
    "optional text": ({"type": ["string", "null"]}, (str, type(None))),
    "optional truth": ({"type": ["boolean", "null"], "default": None}, (bool, type(None))),
    "optional number": ({"type": ["integer", "null"], "maximum": 99}, (int, type(None))),
    "one type in a list": ({"type": ["null"]}, (type(None),)),
    "anyOf": ({"anyOf": [SHORT, {"type": "null"}]}, (str, type(None))),
    "enum without type": ({"enum": ["x", None, True]}, (str, type(None), bool)),
    "optional enum": ({"type": ["string", "null"], "enum": ["x", None]}, (str, type(None))),
    "const": ({"const": "x"}, (str,)),
    "const null": ({"const": None}, (type(None),)),
    "$ref": ({"$ref": "#/$defs/short"}, (str,)),
    "true": (True, (object,)),
    "nothing": ({}, (object,)),
}


@pytest.mark.one_of(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", TYPES)
def test_an_argument_of_any_kind_of_schema(family: str, name: str) -> None:
    schema, kinds = TYPES[name]
    chat = Chat(body(needed(schema, **{"$defs": {"short": SHORT}})), template(family))
    for seed in range(2):
        values = arguments(chat, chat.draw(seed))
        assert values.keys() == {"a"} and isinstance(values["a"], kinds)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [[], {"a": 1}, [["string"]], ["text"], 5, None])
def test_a_type_that_is_none_is_refused(family: str, kind: Any) -> None:
    with pytest.raises(UserError, match=r"tools\[0\].function.parameters"):
        Chat(body(needed({"type": kind})), template(family)).draw(0)


@pytest.mark.parametrize("family", PYTHON_FORMS)
def test_words_of_python_beside_other_types(family: str) -> None:
    form = FAMILIES[family][1]
    optional = {name: {"type": [name, "null"]} for name in ("string", "boolean", "integer")}
    chat = Chat(body({"type": "object", "properties": optional}), template(family))
    for given in (dict.fromkeys(optional), {"string": "x", "boolean": False, "integer": 3}):
        text = form.written([("f", json.dumps(given))])
        assert arguments(chat, chat.draw(0, text)) == given


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "kind", ["string", "array", ["string", "null"], [], None, 5, {"object": 1}]
)
def test_arguments_that_are_no_object_are_refused(family: str, kind: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        Chat(body({"type": kind}), template(family))
    assert caught.value.field == "tools[0].function.parameters.type"
    assert (caught.value.value, "object" in caught.value.allowed) == (kind, True)


@pytest.mark.parametrize("family", FAMILIES)
def test_of_several_types_arguments_have_that_of_an_object(family: str) -> None:
    for kind in (["object", "null"], ["string", "object"]):
        chat = Chat(body({**needed(SHORT), "type": kind}), template(family))
        assert arguments(chat, chat.draw(0)).keys() == {"a"}


@pytest.mark.parametrize("name", ["const", "enum", "anyOf", "oneOf", "allOf", "$ref"])
def test_arguments_that_can_be_no_object_are_refused(name: str) -> None:
    more = {"const": 5, "enum": ["a"], "$ref": "#/$defs/a"}.get(name, [{"type": "string"}])
    with pytest.raises(InvalidField, match=r"tools\[0\].function.parameters"):
        Chat(body({name: more, "$defs": {"a": SHORT}}), template("hermes")).draw(0)


KNOWS_FEW_TYPES = (
    '{# <tool_call> "arguments" tool_calls #}{% set known = {"string": "str", "object": "dict"} %}'
    "{% for tool in tools or [] %}"
    "{% for name, one in tool.function.parameters.properties | items %}"
    '{{ name }}: {{ known[one.type] + "" if one.type is defined else "Any" }}\n'
    "{% endfor %}{{ tool | tojson }}{% endfor %}"
)
"""A template that fails for a list of types, as those of Hermes 2 and 3 do, which know no null."""


def test_a_template_that_knows_few_types() -> None:
    optional = {"type": ["string", "null"], "enum": ["x", None], "description": "y"}
    inner = {"type": "object", "properties": {"type": {"type": "null"}}}
    properties = {"a": optional, "b": inner, "c": {"type": "string"}}
    chat = Chat(body({"type": "object", "properties": properties}), jinja(KNOWS_FEW_TYPES))
    head, _, shown = chat.prompt.rpartition("\n")
    assert head.endswith("a: Any\nb: dict\nc: str")
    found = json.loads(shown)["function"]["parameters"]["properties"]
    both = [{"type": "string"}, {"type": "null"}]
    assert found["a"] == {"enum": ["x", None], "description": "y", "anyOf": both}
    assert found["b"]["properties"] == {"type": {"anyOf": [{"type": "null"}]}}


ITSELF: dict[str, Any] = {
    "another argument": needed({"$ref": "#/properties/b"}),
    "its own part": needed({"type": "object", "properties": {"c": {"$ref": "#/properties/b"}}}),
    "the whole": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, "b": SHORT},
        "required": ["a"],
    },
    "in a definition": needed(
        {"$ref": "#/$defs/d"}, **{"$defs": {"d": {"$ref": "#/properties/b"}}}
    ),
    "of the older kind": needed(
        {"$ref": "#/definitions/d"}, definitions={"d": {"$ref": "#/properties/b"}}
    ),
}
"""Schemas that refer to themselves, as zod makes them where it meets the same one again."""


@pytest.mark.one_of(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ITSELF)
def test_a_reference_to_a_part_of_the_schema(family: str, name: str) -> None:
    schema = ITSELF[name]
    schema = {**schema, "properties": {**schema["properties"], "b": SHORT}}
    chat = Chat(body(schema), template(family))
    value = arguments(chat, chat.draw(2))["a"]
    kinds = {"the whole": list, "its own part": dict}
    assert isinstance(value, kinds.get(name, str))
    if isinstance(value, str):
        assert len(value) <= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reference_to_nothing_is_refused(family: str) -> None:
    with pytest.raises(InvalidField, match=r"tools\[0\].function.parameters"):
        Chat(body(needed({"$ref": "#/properties/x"})), template(family)).draw(0)
