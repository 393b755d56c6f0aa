"""The form that an answer must have: free text, JSON, or a text of a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from mlc_llm.errors import MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json

GRAMMAR_SYNTAXES = ("lark", "gbnf", "ebnf", "regex")
RESPONSE_FORMAT_TYPES = (
    "text",
    "json_object",
    "json_schema",
    "grammar",
    "structural_tag",
    "function",
    *GRAMMAR_SYNTAXES,
)
MAX_SCHEMA_CHARS = 256 * 1024
MAX_TAGS = 128
MAX_TAG_CHARS = 1024
MAX_PARTS = 1024
MAX_PARTS_CHARS = 1024 * 1024
"""In the schemas and definitions of all parts of a grammar together."""
_PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


class WrittenGrammar(BaseModel):
    """A grammar, written in one of the grammar languages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    syntax: Literal["lark", "gbnf", "ebnf", "regex"]
    """`ebnf` is another name of `gbnf`."""
    definition: str
    parts: tuple[GrammarPart, ...] = ()
    """Other forms that a grammar in Lark refers to, by `@` and their names."""

    @field_validator("syntax", mode="before")
    @classmethod
    def _syntax(cls, value: object) -> object:
        if value not in GRAMMAR_SYNTAXES:
            raise checks.refuse("syntax", value, f"known: {', '.join(GRAMMAR_SYNTAXES)}")
        return value

    @field_validator("definition", mode="before")
    @classmethod
    def _definition(cls, value: object) -> str:
        return checks.string("definition", value, MAX_SCHEMA_CHARS)

    @model_validator(mode="after")
    def _parts_fit(self) -> WrittenGrammar:
        if self.parts and self.syntax != "lark":
            raise checks.refuse("parts", "...", "only a grammar in Lark has parts")
        if len(self.parts) > MAX_PARTS:
            raise checks.refuse("parts", f"<{len(self.parts)} parts>", f"at most {MAX_PARTS}")
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise checks.refuse("parts", names, "each has a name of its own")
        if sum(part.size for part in self.parts) > MAX_PARTS_CHARS:
            words = f"at most {MAX_PARTS_CHARS} characters together"
            raise checks.refuse("parts", f"<{len(self.parts)} parts>", words)
        return self

    @model_serializer(mode="wrap")
    def _parts_if_any(self, whole: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in whole(self).items() if name != "parts" or value}


class StructuralTag(BaseModel):
    """A part of the answer: a fixed text, then JSON, then another fixed text."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    begin: str
    json_schema: str = Field(alias="schema")
    end: str = ""

    @field_validator("begin", "end", mode="before")
    @classmethod
    def _text(cls, value: object, info: ValidationInfo) -> str:
        least = 1 if info.field_name == "begin" else 0
        return checks.string(str(info.field_name), value, MAX_TAG_CHARS, min_chars=least)

    @field_validator("json_schema", mode="before")
    @classmethod
    def _schema(cls, value: object) -> str:
        return _schema_text("schema", value)


class RequestResponseFormat(BaseModel):
    """The form of an answer. `schema` is the text of a JSON schema; its type is `json_object`.

    OpenAI's `{"type": "json_schema", "json_schema": {"schema": {...}}}` is accepted too. It becomes
    `json_object` with that schema. `grammar` is
    `{"type": "grammar", "grammar": {"syntax": ..., "definition": ...}}`. Its short form is
    `{"type": syntax, syntax: definition}`: `{"type": "regex", "regex": "[0-9]+"}`, or the same with
    `ebnf`, `gbnf` or `lark`. `structural_tag` is
    `{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`:
    free text, in which each trigger starts one of the structures. `function` marks an answer that
    is read as a tool call; it has no grammar. The grammar compiler checks later whether a schema or
    a grammar is valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["text", "json_object", "grammar", "structural_tag", "function"] = "text"
    json_schema: str | None = Field(default=None, alias="schema")
    grammar: WrittenGrammar | None = None
    structures: tuple[StructuralTag, ...] | None = None
    triggers: tuple[str, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_one_form(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        fields = {key: v for key, v in value.items() if v is not None}
        kind = fields.get("type", "text")
        if kind not in RESPONSE_FORMAT_TYPES:
            known = ", ".join(RESPONSE_FORMAT_TYPES)
            allowed = f"Unknown response_format type {checks.shown(str(kind))}; known: {known}"
            raise checks.refuse("type", kind, allowed)
        if kind == "json_schema":
            return {"type": "json_object", "schema": _openai_schema(fields)}
        if kind in GRAMMAR_SYNTAXES:
            return _short_grammar(kind, fields)
        _refuse_strangers(kind, fields)
        schema = fields.pop("schema", fields.pop("json_schema", None))
        if schema is not None:
            fields["schema"] = _schema_text("schema", schema)
        return fields

    @model_validator(mode="after")
    def _triggers_fit(self) -> RequestResponseFormat:
        for i, tag in enumerate(self.structures or ()):
            if not tag.begin.startswith(self.triggers or ()):
                raise checks.refuse(
                    f"structures[{i}].begin", tag.begin, "it should start with one of the triggers"
                )
        return self

    @field_validator("structures", mode="before")
    @classmethod
    def _structures(cls, value: object) -> object:
        items = checks.listing("structures", value, MAX_TAGS)
        if not items:
            raise checks.refuse("structures", items, "give at least one")
        return tuple(items)

    @field_validator("triggers", mode="before")
    @classmethod
    def _triggers(cls, value: object) -> tuple[str, ...]:
        items = checks.listing("triggers", value, MAX_TAGS)
        return tuple(
            checks.string(f"triggers[{i}]", item, MAX_TAG_CHARS, min_chars=1)
            for i, item in enumerate(items)
        )

    @model_serializer(mode="wrap")
    def _own_fields_only(self, whole: SerializerFunctionWrapHandler) -> dict[str, object]:
        absent = [name for name in OTHER_FIELDS if getattr(self, name) is None]
        return {name: value for name, value in whole(self).items() if name not in absent}

    @property
    def needs_grammar(self) -> bool:
        """True if some texts are not allowed as an answer."""
        return self.type in OWN_FIELDS


class GrammarPart(BaseModel):
    """A form inside a grammar: a JSON schema, or another grammar."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str
    """Small letters, digits and `_`."""
    form: RequestResponseFormat
    """Of type `json_object`, or `grammar` without parts."""
    field: str | None = None
    """The field to name where this part is refused. None: the place of the part."""

    @field_validator("name", mode="after")
    @classmethod
    def _known_letters(cls, value: str) -> str:
        if not _PART_NAME.match(value):
            raise checks.refuse("name", value, "small letters, digits and _, a letter first")
        return value

    @field_validator("form", mode="after")
    @classmethod
    def _no_free_text(cls, value: RequestResponseFormat) -> RequestResponseFormat:
        inner = value.grammar
        if value.type not in ("json_object", "grammar") or (inner is not None and inner.parts):
            raise checks.refuse("form", value.type, "json_object, or grammar without parts")
        return value

    @property
    def size(self) -> int:
        """Characters of its schema or definition."""
        return len(self.form.json_schema or "") + len(
            self.form.grammar.definition if self.form.grammar is not None else ""
        )


OWN_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "json_object": ((), ("schema", "json_schema")),
    "grammar": (("grammar",), ()),
    "structural_tag": (("structures", "triggers"), ()),
}
"""Type -> the fields that it needs, and the fields that it may have."""
OTHER_FIELDS = ("grammar", "structures", "triggers")
"""They are written only if they are set."""


def _refuse_strangers(kind: str, fields: Mapping[str, object]) -> None:
    """Raise `InvalidField` for a field of another type, and for a missing field."""
    needed, allowed = OWN_FIELDS.get(kind, ((), ()))
    for name in ("schema", "json_schema", *OTHER_FIELDS):
        if name in fields and name not in (*needed, *allowed):
            shown = "schema" if name == "json_schema" else name
            raise checks.refuse(shown, fields[name], f"type {kind} takes no {shown}")
    for name in needed:
        if name not in fields:
            raise MissingKey(name, name)


def _short_grammar(syntax: str, fields: Mapping[str, object]) -> dict[str, object]:
    """`{"type": syntax, syntax: definition}` in the long form."""
    for name, value in fields.items():
        if name not in ("type", syntax):
            raise checks.refuse(name, value, f"type {syntax} takes {syntax} and nothing else")
    if syntax not in fields:
        raise MissingKey(syntax, syntax)
    definition = checks.string(syntax, fields[syntax], MAX_SCHEMA_CHARS)
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def _openai_schema(fields: Mapping[str, object]) -> str:
    inner = fields.get("json_schema")
    if inner is None:
        raise MissingKey("json_schema", "json_schema")
    if not isinstance(inner, Mapping):
        raise checks.wrong_type("json_schema", inner, "should be an object with a schema")
    if inner.get("schema") is None:
        raise MissingKey("json_schema.schema", "schema")
    return _schema_text("json_schema.schema", inner["schema"])


def _schema_text(field: str, schema: object) -> str:
    """A schema as JSON text. It may be given as an object or as JSON text; bad JSON is refused."""
    if isinstance(schema, (Mapping, bool)):
        try:
            schema = json.dumps(schema, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise checks.refuse(field, "<schema>", f"cannot be written as JSON: {error}") from None
    text = checks.string(field, schema, MAX_SCHEMA_CHARS)
    if not isinstance(parse_json(text, field), (dict, bool)):
        raise checks.refuse(field, text, "a JSON schema is an object, true or false")
    return text


WrittenGrammar.model_rebuild()
RequestResponseFormat.model_rebuild()
