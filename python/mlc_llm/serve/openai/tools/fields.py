"""Formats in which each argument of a call is written on its own: as tags, or as in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast

from mlc_llm.record import record

_NOTES = {"type", "description", "title", "default", "examples", "example", "enum", "$comment"}
"""Keywords of a text that leave it free, or name its values."""


@record()
class FieldForm:
    """What stands around the arguments, and between them."""

    key_begin: str
    key_end: str
    value_end: str
    """Behind a value that is written as JSON."""
    raw: tuple[str, str] | None = None
    """What stands before and behind a text that is written as it is. None: texts are JSON."""
    after: str = ""
    """Behind each argument, if only white space."""
    comma: str = ""
    """Between two arguments."""
    words: bool = False
    """True, False and None, as in Python."""
    key_end_json: str | None = None
    """Where a value is JSON, this stands for `key_end`. None: there is no difference."""

    def behind_key(self, kind: ValueKind) -> str:
        """What stands between the name of an argument and a value of this kind."""
        is_raw = kind is ValueKind.RAW or self.key_end_json is None
        return self.key_end if is_raw else cast("str", self.key_end_json)

    def kind(self, schema: object) -> ValueKind:
        """How a value of this schema is written."""
        if not isinstance(schema, Mapping):
            return ValueKind.JSON
        if self.raw is not None and _is_free_text(schema, self.raw[1].strip()):
            return ValueKind.RAW
        return ValueKind.JSON

    def as_words(self, schema: object) -> tuple[list[str], object]:
        """The words that stand for some values of this schema, and the schema of the others, which
        are JSON: False, the schema that nothing fits, if there are none."""
        if not self.words or not isinstance(schema, Mapping):
            return [], schema
        given = schema.get("type")
        kinds = given if isinstance(given, list) else [given]
        words = [word for kind in kinds if isinstance(kind, str) for word in _WORDS.get(kind, ())]
        if not words or not schema.keys() <= _NOTES - {"enum"}:
            return [], schema
        others = [kind for kind in kinds if not isinstance(kind, str) or kind not in _WORDS]
        return words, {**schema, "type": others} if others else False

    def written(self, schema: object, value: object) -> str:
        """A value as the model writes it."""
        if self.raw is not None and isinstance(value, str) and self.kind(schema) is ValueKind.RAW:
            return self.raw[0] + value + self.raw[1]
        if self.words and (value is None or isinstance(value, bool)):
            return str(value) + self.value_end
        return json.dumps(value, ensure_ascii=False) + self.value_end


class ValueKind(Enum):
    """How a value is written."""

    RAW = "a text as it is"
    JSON = "JSON, or a word of Python"


_WORDS = {"boolean": ("True", "False"), "null": ("None",)}
"""Type -> its values, as words."""


def _is_free_text(schema: Mapping[str, object], end: str) -> bool:
    """Whether any text fits, or one of a few that do not have `end` inside."""
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        named = all(isinstance(one, str) and end not in one for one in values)
        return bool(values) and named and schema.keys() <= _NOTES
    return schema.get("type") == "string" and schema.keys() <= _NOTES


def properties_of(schema: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a function, by name."""
    found = schema.get("properties")
    return dict(found) if isinstance(found, Mapping) else {}
