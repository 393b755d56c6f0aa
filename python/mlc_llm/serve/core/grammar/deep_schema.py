"""Schemas with many levels, in a form that the grammar library can read.

Its JSON reader refuses a text of more than 128 levels. So what lies deep moves to `$defs`, and a
reference stands in its place.
"""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import unquote

from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.schema_kinds import SCHEMA, kind_of

Schema: TypeAlias = "dict[str, JsonValue]"

LEVELS = 40
"""A schema with at most so many levels stays as it is."""
_STEP = 24
"""The levels of what moves."""
_NAMED = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
"""Where one of these stands, a reference means more than a place."""


def flattened(schema: Schema) -> Schema:
    """A schema with the same meaning and few levels. One that has few is returned itself."""
    if _levels(schema) <= LEVELS:
        return schema
    moving = _Moving(schema)
    if moving.has_names:
        return schema
    made = moving.copied(schema, SCHEMA, 1, "#")
    assert isinstance(made, dict)
    given = made.get("$defs", {})
    defs: Schema = {**(given if isinstance(given, dict) else {}), **moving.defs}
    found = moving.redirected({**made, "$defs": defs})
    assert isinstance(found, dict)
    return found


class _Moving:
    """Moves the deep parts of one schema."""

    def __init__(self, schema: Schema) -> None:
        given = schema.get("$defs")
        self._taken = set(given) if isinstance(given, dict) else set()
        self._moved: dict[str, str] = {}
        """Where a part stood -> where it stands; both as references."""
        self.defs: Schema = {}
        self.has_names = False
        self._look_for_names(schema)

    def copied(self, node: JsonValue, kind: int, depth: int, place: str) -> JsonValue:
        """A copy with references in place of what lies deep. place: of the node."""
        if isinstance(node, list):
            return [self.copied(one, kind, depth + 1, f"{place}/{i}") for i, one in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if kind is SCHEMA and depth >= _STEP:
            return {"$ref": self._moved_to(node, place)}
        return self._inside(node, kind, depth, place)

    def redirected(self, node: JsonValue) -> JsonValue:
        """A copy whose references lead to where the parts stand now."""
        if isinstance(node, list):
            return [self.redirected(one) for one in node]
        if not isinstance(node, dict):
            return node
        found = {key: self.redirected(one) for key, one in node.items()}
        target = found.get("$ref")
        if isinstance(target, str):
            found["$ref"] = self._target(target)
        return found

    def _inside(self, node: Schema, kind: int, depth: int, place: str) -> Schema:
        return {
            key: self.copied(one, kind_of(kind, key), depth + 1, f"{place}/{_escaped(key)}")
            for key, one in node.items()
        }

    def _moved_to(self, node: Schema, place: str) -> str:
        number = len(self.defs)
        name = f"deep_{number}"
        while name in self._taken:
            name += "_"
        self.defs[name] = None  # the number is taken
        self._moved[place] = f"#/$defs/{name}"
        self.defs[name] = self._inside(node, SCHEMA, 1, place)
        return self._moved[place]

    def _target(self, target: str) -> str:
        wanted = unquote(target)
        if wanted in self._moved.values():
            return target
        inner = [one for one in self._moved if wanted == one or wanted.startswith(one + "/")]
        if not inner:
            return target
        nearest = max(inner, key=len)
        return self._moved[nearest] + wanted[len(nearest) :]

    def _look_for_names(self, node: JsonValue) -> None:
        if isinstance(node, dict):
            self.has_names = self.has_names or any(name in node for name in _NAMED)
        for one in _children(node):
            self._look_for_names(one)


def _levels(node: JsonValue) -> int:
    depth, level = 0, [node]
    while level:
        depth += 1
        level = [one for inner in level for one in _children(inner)]
    return depth


def _children(node: JsonValue) -> list[JsonValue]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _escaped(key: str) -> str:
    """A key in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
