"""What shape an answer must have: free text, any JSON, or JSON that fits a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlc_llm.protocol import checks
from mlc_llm.protocol.error_protocol import MissingKey
from mlc_llm.protocol.json_text import parse_json

RESPONSE_FORMAT_TYPES = ("text", "json_object", "json_schema", "function")
MAX_SCHEMA_CHARS = 256 * 1024


class RequestResponseFormat(BaseModel):
    """As the engine reads it: `schema` is the text of a JSON schema and needs `json_object`.

    OpenAI's `{"type": "json_schema", "json_schema": {"schema": {...}}}` is taken too and becomes
    `json_object` with that schema. `function` marks an answer that is read as a tool call; no
    grammar belongs to it. Whether a schema makes sense is found out by the grammar compiler.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["text", "json_object", "function"] = "text"
    json_schema: str | None = Field(default=None, alias="schema")

    @model_validator(mode="before")
    @classmethod
    def _in_one_form(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields = {key: v for key, v in value.items() if v is not None}
        kind = fields.get("type", "text")
        if kind not in RESPONSE_FORMAT_TYPES:
            # Callers match upstream's spelling of the first word, so it stays as it is.
            known = ", ".join(RESPONSE_FORMAT_TYPES)
            allowed = f"Uknonwn response_format type {str(kind)[:64]}; known: {known}"
            raise checks.refuse("type", kind, allowed)
        if kind == "json_schema":
            return {"type": "json_object", "schema": _openai_schema(fields)}
        schema = fields.pop("schema", fields.pop("json_schema", None))
        if schema is not None:
            if kind != "json_object":
                raise checks.refuse("schema", schema, f"type {kind} takes no schema")
            fields["schema"] = _schema_text("schema", schema)
        return fields

    @property
    def needs_grammar(self) -> bool:
        """True when not every text will do."""
        return self.type == "json_object"


def _openai_schema(fields: Mapping[str, Any]) -> str:
    inner = fields.get("json_schema")
    if inner is None:
        raise MissingKey("json_schema", "json_schema")
    if not isinstance(inner, Mapping):
        raise checks.wrong_type("json_schema", inner, "should be an object with a schema")
    if inner.get("schema") is None:
        raise MissingKey("json_schema.schema", "schema")
    return _schema_text("json_schema.schema", inner["schema"])


def _schema_text(field: str, schema: object) -> str:
    """A schema given as an object or as JSON text, as JSON text; broken JSON is refused here."""
    if isinstance(schema, (Mapping, bool)):
        try:
            schema = json.dumps(schema, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise checks.refuse(field, "<schema>", f"cannot be written as JSON: {error}") from None
    text = checks.string(field, schema, MAX_SCHEMA_CHARS)
    if not isinstance(parse_json(text, field), (dict, bool)):
        raise checks.refuse(field, text, "a JSON schema is an object, true or false")
    return text
