"""Schemas of many levels, which the grammar library alone would refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_tools import allowed_ids, fits, matcher_of, random_tokens, schemas, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField
from mlc_llm.serve.core.grammar.deep_schema import LEVELS, flattened


def inside(schema: dict[str, Any], levels: int) -> dict[str, Any]:
    """The schema inside so many objects."""
    for _ in range(levels):
        schema = {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "additionalProperties": False,
        }
    return schema


def value_inside(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def accepts(schema: dict[str, Any], value: Any) -> bool:
    matcher = matcher_of({"type": "json_object", "schema": schema})
    for token in tokenizer().encode(json.dumps(value)):
        if token not in allowed_ids(matcher.mask()):
            return False
        matcher.accept(token)
    return matcher.is_finished or any(map(matcher.ends, allowed_ids(matcher.mask())))


@pytest.mark.parametrize("levels", [10, 61, 62, 64, 98])
def test_objects_inside_each_other(levels: int) -> None:
    schema = inside({"type": "integer", "minimum": 3, "maximum": 5}, levels)
    assert accepts(schema, value_inside(4, levels))
    assert not accepts(schema, value_inside(6, levels))
    assert not accepts(schema, value_inside(4, levels + 1))


def test_too_many_levels_are_refused() -> None:
    with pytest.raises(InvalidField, match="nested more than 200 levels"):
        matcher_of({"type": "json_object", "schema": inside({"type": "integer"}, 100)})


@given(schema=schemas(), levels=st.integers(40, 60), seed=st.integers(0, 99))
def test_deep_schemas_mean_the_same(schema: dict[str, Any], levels: int, seed: int) -> None:
    deep = inside(schema, levels)
    assert flattened(deep) != deep
    tokens = random_tokens(matcher_of({"type": "json_object", "schema": deep}), seed, limit=1500)
    if tokens is not None:
        found = json.loads(tokenizer().decode(tokens))
        for _ in range(levels):
            found = found["a"]
        assert fits(found, schema)


def test_references_lead_to_what_has_moved() -> None:
    leaf = {"type": "object", "properties": {"x/~y": {"enum": ["x"]}}, "required": ["x/~y"]}
    schema = inside({**leaf, "additionalProperties": False}, 50)
    path = "#" + "/properties/a" * 50
    for target, value in [
        (path + "/properties/x~1~0y", "x"),
        (path.replace("properties", "%70roperties"), {"x/~y": "x"}),
        ("#/properties/a", value_inside({"x/~y": "x"}, 49)),
    ]:
        whole = {**schema, "properties": {**schema["properties"], "b": {"$ref": target}}}
        whole["required"] = ["a", "b"]
        deep = value_inside({"x/~y": "x"}, 50)
        assert accepts(whole, {**deep, "b": value})
        assert not accepts(whole, {**deep, "b": "y"})


def test_names_that_are_taken_and_values_stay() -> None:
    values = {"$ref": "#/properties/a", "properties": {"a": [1]}}
    schema = inside({"const": values}, 45)
    schema["$defs"] = {"deep_0": {"type": "null"}}
    assert accepts(schema, value_inside(values, 45))


def test_what_is_not_deep_is_left_alone() -> None:
    shallow = inside({"type": "integer"}, (LEVELS - 2) // 2)
    assert flattened(shallow) is shallow
    named = {"$id": "x", **inside({"type": "integer"}, 50)}
    assert flattened(named) is named
