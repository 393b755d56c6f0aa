"""The base classes of our protocol models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from mlc_llm.errors import UserError
from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.json_text import parse_json_object

MOST_FIELDS = 1024
"""Of one object that users write. Each costs more than to read it."""


class AnswerModel(BaseModel):
    """A model that keeps unknown fields. Reading one calls no Python code, because a client reads
    a chunk for every token.

    Unknown fields are not refused and not lost: `unknown_fields` lists them. The receiver can then
    refuse them, or say that they have no effect.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())

    @classmethod
    def parse(cls, value: object, what: str = "") -> Self:
        """A mapping as this model. Raises `UserError` of one line with the field's path."""
        return validated(cls, value, what)

    @classmethod
    def parse_text(cls, text: str | bytes) -> Self:
        """A JSON text as this model. Raises `UserError`."""
        return cls.parse(parse_json_object(text, "the request"))

    def unknown_fields(self) -> list[str]:
        """Paths of the fields that this version does not know, here and inside its fields."""
        found = list(self.model_extra or ())
        for name in type(self).model_fields:
            found += [name + rest for rest in _unknown_inside(getattr(self, name))]
        return found


class OpenModel(AnswerModel):
    """A model that users write. In its optional fields, null means the default."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        if len(value) > MOST_FIELDS:
            words = f"an object with {len(value)} fields is not allowed: at most {MOST_FIELDS}"
            raise UserError(words)
        needed = cls._required_keys()
        return {str(key): v for key, v in value.items() if v is not None or key in needed}

    @classmethod
    @cache
    def _required_keys(cls) -> set[str]:
        return {
            key
            for name, field in cls.model_fields.items()
            if field.is_required()
            for key in (name, field.alias or name)
        }


def _unknown_inside(value: object) -> list[str]:
    if isinstance(value, AnswerModel):
        return ["." + rest for rest in value.unknown_fields()]
    if isinstance(value, list) and not _is_plain(value):
        return [f"[{i}]{rest}" for i, one in enumerate(value) for rest in _unknown_inside(one)]
    return []


def _is_plain(value: list[object]) -> bool:
    """It has texts or numbers alone: a prompt of many token ids is passed over quickly."""
    return set(map(type, value)) <= {int, str, float}
