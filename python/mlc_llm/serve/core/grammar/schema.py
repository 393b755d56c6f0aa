"""Bounds of JSON schemas, checked before the grammar library sees one: they keep its work small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.json_text import parse_json
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.schema_kinds import SCHEMA, kind_of
from mlc_llm.serve.core.grammar.numbers import check_numbers
from mlc_llm.serve.core.grammar.optional_parts import check_pattern

Schema: TypeAlias = "dict[str, JsonValue]"
Part: TypeAlias = "dict[str, JsonValue] | list[JsonValue]"

MAX_BYTES = 256 * 1024
MAX_DEPTH = 200
"""Arrays and objects inside each other. A level of a value takes two in its schema."""
MAX_PROPERTIES = 1000
"""In all objects of the schema together."""
MAX_ENUM = 10_000
"""In all lists of values together."""
MAX_VALUE_CHARS = 16 * 1024
"""The length of one value as JSON. It is forced text, which takes time in each step."""
_NEEDS_U = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""What the grammar library writes with `\\u`."""


def check_schema(text: str, field: str) -> Schema:
    """The schema as an object. `field` stands in errors.

    Raises `InvalidField` for a schema beyond the bounds, or with a reference to another document.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidField(field, f"<{size} bytes>", f"a schema has at most {MAX_BYTES} bytes")
    schema: JsonValue = parse_json(text, field)
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise InvalidField(field, schema, "a JSON schema is an object, true or false")
    check_parts(schema, field)
    return schema


def check_parts(schema: Part, field: str) -> None:
    """Raise `InvalidField` for a schema with too many, too large or too deep parts."""
    properties = values = 0
    for node, depth, kind in _walk(schema):
        if depth > MAX_DEPTH:
            raise _too_much(field, "nested more than", MAX_DEPTH, "levels")
        if kind is not SCHEMA or not isinstance(node, dict):
            continue
        properties += _size(node, "properties", dict)
        values += _size(node, "enum", list)
        if properties > MAX_PROPERTIES:
            raise _too_much(field, "more than", MAX_PROPERTIES, "properties")
        if values > MAX_ENUM:
            raise _too_much(field, "more than", MAX_ENUM, "values in enum")
        _check_references(node, field)
        _check_values(node, field)
        check_numbers(node, field)
        _check_count(node, field)
        _check_patterns(node, field)


def has_open_objects(schema: Part) -> bool:
    """Whether an object may have properties that are not listed, beside some that are."""
    return any(
        kind is SCHEMA
        and isinstance(node, dict)
        and node.get("additionalProperties") is not False
        and any(node.get(key) for key in ("properties", "patternProperties", "required"))
        for node, _, kind in _walk(schema)
    )


def check_spellings(schema: Part, field: str) -> None:
    """Raise `InvalidField` for a value that JSON cannot have without `\\u`."""
    for node, _, kind in _walk(schema):
        if kind is not SCHEMA or not isinstance(node, dict):
            continue
        for key in ("const", "enum"):
            if any(_NEEDS_U.search(text) for text in _texts(node.get(key))):
                allowed = (
                    "only texts without such control characters, since an object may have "
                    "properties that the schema does not list: set additionalProperties to false"
                )
                raise InvalidField(f"{field} {key}", node[key], allowed)


def _texts(value: JsonValue) -> Iterator[str]:
    """All texts of a value, without the names of properties."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, (dict, list)):
            waiting += [child for _, child in _children(one)]


def _check_references(node: Schema, field: str) -> None:
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = node.get(key)
        if isinstance(target, str) and not target.startswith("#"):
            raise InvalidField(
                f"{field} {key}", target, "a reference stays in the schema: it starts with #"
            )


def _check_values(node: Schema, field: str) -> None:
    given = node.get("enum")
    for value in [node.get("const"), *(given if isinstance(given, list) else ())]:
        if isinstance(value, (str, list, dict)) and len(json.dumps(value)) > MAX_VALUE_CHARS:
            raise _too_much(field, "a value of more than", MAX_VALUE_CHARS, "characters")


def _check_count(node: Schema, field: str) -> None:
    """Two properties that are not listed might have one name."""
    least, needed = node.get("minProperties"), node.get("required")
    names = needed if isinstance(needed, list) else []
    if isinstance(least, (int, float)) and least > len(names) + 1:
        allowed = (
            "a grammar cannot keep apart the names that are not listed: a schema may ask for one "
            "property more than are required"
        )
        raise InvalidField(f"{field} minProperties", least, allowed)


def _check_patterns(node: Schema, field: str) -> None:
    named, layout = node.get("patternProperties"), node.get("x-guidance")
    patterns = [node.get("pattern"), *(named if isinstance(named, dict) else ())]
    patterns += layout.values() if isinstance(layout, dict) else ()
    for pattern in patterns:
        if isinstance(pattern, str):
            check_pattern(f"{field} pattern", pattern)


def _walk(schema: Part) -> Iterator[tuple[Part, int, int]]:
    """Every array and object, its depth, and its kind."""
    waiting: list[tuple[Part, int, int]] = [(schema, 1, SCHEMA)]
    while waiting:
        node, depth, kind = waiting.pop()
        yield node, depth, kind
        waiting += [
            (child, depth + 1, kind_of(kind, key))
            for key, child in _children(node)
            if isinstance(child, (dict, list))
        ]


def _children(node: Part) -> Iterable[tuple[str | None, JsonValue]]:
    return node.items() if isinstance(node, dict) else ((None, child) for child in node)


def _size(node: Schema, key: str, kind: type) -> int:
    value = node.get(key)
    return len(value) if isinstance(value, (dict, list)) and isinstance(value, kind) else 0


def _too_much(field: str, how: str, limit: int, what: str) -> InvalidField:
    return InvalidField(field, "<schema>", f"{how} {limit} {what}; make the schema smaller")
