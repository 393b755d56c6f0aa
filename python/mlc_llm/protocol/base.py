"""The manners all our protocol models share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.json_text import parse_json_object


class AnswerModel(BaseModel):
    """A model that keeps unknown fields. It is read without a call into Python, for a client reads
    a chunk for every token.

    Unknown fields are neither refused nor lost: `unknown_fields` lists them, so that whoever
    answers can say what had no effect, or refuse it.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())

    @classmethod
    def parse(cls, value: object, what: str = "") -> Self:
        """A mapping as this model. Raises `UserError` of one line with the field's path."""
        return validated(cls, value, what)

    @classmethod
    def parse_text(cls, text: str | bytes, what: str = "the request") -> Self:
        """A JSON text as this model. Raises `UserError`."""
        return cls.parse(parse_json_object(text, what))

    def unknown_fields(self) -> list[str]:
        """Paths of the fields that this version does not know, here and in parts of it."""
        found = list(self.model_extra or ())
        for name in type(self).model_fields:
            found += [name + rest for rest in _unknown_inside(getattr(self, name))]
        return found


class OpenModel(AnswerModel):
    """A model that users write: its optional fields take null for "default" too."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
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
    if isinstance(value, list):
        return [f"[{i}]{rest}" for i, one in enumerate(value) for rest in _unknown_inside(one)]
    return []
