"""The grammar of the arguments of a `FieldForm`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import cast

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.response_format import GrammarPart
from mlc_llm.serve.openai.tools.family import Function
from mlc_llm.serve.openai.tools.fields import FieldForm, ValueKind, properties_of
from mlc_llm.serve.openai.tools.lark import ANY, Split, fixed, until
from mlc_llm.serve.openai.tools.layout_rules import Body, schema_part
from mlc_llm.serve.openai.tools.tool_schema import with_root_at

_OUTSIDE = ("$defs", "definitions")
_KNOWN = {"type", "properties", "required", "additionalProperties", *_OUTSIDE, "$schema"}
_ROOT = "mlc_llm.function"
"""Among the definitions of an argument: the schema of its function."""
_NOTES = {"title", "description", "$id", "$comment", "strict", "examples", "default"}


class FieldRules:
    """Makes the rules of the arguments of one function."""

    def __init__(self, form: FieldForm, function: Function, number: int, split: Split) -> None:
        """Raises `InvalidField` for a schema that is more than a list of properties."""
        self._form, self._number, self._split = form, number, split
        self._function, self._schema = function, function.schema
        _check(function)
        required = self._schema.get("required", [])
        self._required = set(cast("list[str]", required))
        self._names = list(properties_of(self._schema))
        self._outside = {key: self._schema[key] for key in _OUTSIDE if key in self._schema}
        self._rules: list[str] = []
        self._parts: list[GrammarPart] = []

    def body(self) -> Body:
        """What stands for the arguments, with its rules and parts."""
        fields = [self._field(i, name) for i, name in enumerate(self._names)]
        reference = self._plain(fields) if not self._form.comma else self._separated(fields)
        return Body(reference, self._rules, self._parts)

    def _plain(self, fields: list[str]) -> str:
        return " ".join(
            field if name in self._required else f"{field}?"
            for name, field in zip(self._names, fields, strict=True)
        )

    def _separated(self, fields: list[str]) -> str:
        """A comma stands in front of each argument but the first."""
        comma = fixed(*self._split(self._form.comma))
        behind, reference = "", ""
        for i in reversed(range(len(fields))):
            first = f"{fields[i]} {behind}".strip()
            is_required = self._names[i] in self._required
            options = [first] if is_required else [first, *([reference] if reference else [])]
            empty = not is_required and (not reference or reference.endswith("?"))
            rule = f"args{self._number}_{i}"
            self._rules.append(f"{rule}: {' | '.join(one.removesuffix('?') for one in options)}")
            reference = f"{rule}?" if empty else rule
            follows = f"({comma} {fields[i]})"
            behind = f"{follows if is_required else follows + '?'} {behind}".strip()
        return reference

    def _field(self, i: int, name: str) -> str:
        form, schema = self._form, properties_of(self._schema)[name]
        kind, rule = form.kind(schema), f"field{self._number}_{i}"
        # The name of an argument is ordinary text, whatever it is.
        head = [*self._split(form.key_begin), name, *self._split(form.behind_key(kind))]
        after = fixed(*self._split(form.after))
        if kind is ValueKind.RAW and form.raw is not None:
            head += self._split(form.raw[0])
            value = self._raw(rule, cast("Mapping[str, object]", schema), form.raw[1])
        else:
            value = f"{self._value(i, name)} {fixed(*self._split(form.value_end))}".strip()
        self._rules.append(f"{rule}: {fixed(*head)} {value} {after}".strip())
        return rule

    def _raw(self, rule: str, schema: Mapping[str, object], end: str) -> str:
        values = schema.get("enum")
        if isinstance(values, list):
            options = " | ".join(fixed(value, *self._split(end)) for value in values)
            return f"({options})"
        reference, rules = until(f"{rule}_text", self._split(end), ANY)
        self._rules += rules
        return reference

    def _value(self, i: int, name: str) -> str:
        words, schema = self._form.as_words(properties_of(self._schema)[name])
        options = [fixed(word) for word in words]
        if not words or schema is not False:
            options.append(f"@{self._part(i, name, schema)}")
        return options[0] if len(options) == 1 else f"({' | '.join(options)})"

    def _part(self, i: int, name: str, schema: object) -> str:
        """The name of the part for values that are JSON."""
        whole = self._alone(schema) if isinstance(schema, Mapping) else {"anyOf": [schema]}
        part = f"f{self._number}_{i}"
        self._parts.append(schema_part(part, whole, f"{self._function.field}.properties.{name}"))
        return part

    def _alone(self, schema: Mapping[str, object]) -> dict[str, object]:
        """The schema of an argument, with all that its references mean."""
        moved = with_root_at(schema, _ROOT)
        if moved == schema and not self._outside_moves:
            return {**schema, **self._outside}
        assert isinstance(moved, dict)
        return {**moved, **self._with_root}

    @cached_property
    def _outside_moves(self) -> bool:
        """Whether a definition refers to the function's schema."""
        return with_root_at(self._outside, _ROOT) != self._outside

    @cached_property
    def _with_root(self) -> dict[str, object]:
        """The definitions, and the function's schema as one of them."""
        found = with_root_at(self._schema, _ROOT)
        assert isinstance(found, dict)
        outside = {key: found.pop(key) for key in self._outside}
        given = outside.get("$defs")
        named = given if isinstance(given, Mapping) else {}
        return {**outside, "$defs": {**named, _ROOT: found}}


def _check(function: Function) -> None:
    """Each argument is written on its own, so the schema has to say what each may be."""
    schema = function.schema
    if not isinstance(schema.get("properties", {}), Mapping):
        raise InvalidField(function.field, "properties", "should be an object")
    if not isinstance(schema.get("required", []), list):
        raise InvalidField(function.field, "required", "should be a list")
    more = [key for key in schema if key not in _KNOWN | _NOTES]
    names = properties_of(schema)
    required = cast("list[object]", schema.get("required", []))
    more += [str(one) for one in required if not isinstance(one, str) or one not in names]
    if more or schema.get("type") != "object":
        words = (
            "this model writes each argument on its own: the schema of a function has "
            "properties, and nothing else that decides what fits"
        )
        raise InvalidField(function.field, (more or ["type"])[0], words)
