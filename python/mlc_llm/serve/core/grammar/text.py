"""From a response format to the language that the grammar library compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.response_format import (
    GrammarPart,
    RequestResponseFormat,
    StructuralTag,
    WrittenGrammar,
)
from mlc_llm.serve.core.grammar.deep_schema import flattened
from mlc_llm.serve.core.grammar.numbers import kept_parts
from mlc_llm.serve.core.grammar.optional_parts import check_lark, check_pattern
from mlc_llm.serve.core.grammar.patterns import kept_patterns
from mlc_llm.serve.core.grammar.schema import (
    Schema,
    check_parts,
    check_schema,
    check_spellings,
    has_open_objects,
)

FIELD = "response_format"
MAX_EMBEDDED = 128
MAX_GBNF_CHARS = 16 * 1024
"""The time of the conversion to Lark grows with the square of the number of rules."""

LAYOUT: Schema = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON stands on one line. So most text between values is forced, and a model cannot write white
space without end. A schema's own `x-guidance` may ask for another layout."""
_ONE_SPELLING: Schema = {"json_allowed_escapes": 'nrbtf\\"'}
"""For schemas with open objects. With `\\u`, `"\\u0061"` would be another name than `"a"` to the
library. Control characters other than \\b, \\f, \\n, \\r and \\t cannot be written then."""

Split = Callable[[str], Sequence[str | int]]
"""Cuts a text at control tokens: returns strings, and the ids of the tokens between them."""


def library_text(wanted: RequestResponseFormat, split: Split) -> str:
    """The grammar of a format that needs one, in the library's form.

    Raises `InvalidField` with the part of the format that is refused here, before the library sees
    it.
    """
    own = _library_form(wanted, split, field_and_text(wanted)[0])
    parts = () if wanted.grammar is None else wanted.grammar.parts
    named = [
        {"name": part.name, **_library_form(part.form, split, field_of(part))} for part in parts
    ]
    return json.dumps({"grammars": [own, *named]})


def field_of(part: GrammarPart) -> str:
    """The field to name in errors about a part."""
    return part.field or f"{FIELD}.grammar.parts.{part.name}"


def _library_form(wanted: RequestResponseFormat, split: Split, field: str) -> Schema:
    """One grammar. field: to name in errors."""
    if wanted.grammar is not None:
        lark = _written(wanted.grammar, field)
        lark = _embedded(lark, field)
        check_lark(field, lark)
        return {"lark_grammar": lark}
    if wanted.structures is not None:
        return {"lark_grammar": _tags(wanted.structures, wanted.triggers or (), split)}
    return {"json_schema": _schema(wanted.json_schema, field)}


def _schema(schema: str | None, field: str) -> Schema:
    found: Schema = {"type": "object"} if schema is None else check_schema(schema, field)
    options = {**LAYOUT, **_escapes(found, field), **_options(found, field)}
    return {**flattened(_kept(found)), "x-guidance": options}


def _kept(schema: Schema) -> Schema:
    return kept_patterns(kept_parts(schema))


def _escapes(schema: Schema, field: str) -> Schema:
    if not has_open_objects(schema):
        return {}
    check_spellings(schema, field)
    return _ONE_SPELLING


def _options(schema: Schema, field: str) -> Schema:
    given = schema.get("x-guidance", {})
    if not isinstance(given, dict):
        raise InvalidField(f"{field} x-guidance", given, "it should be an object")
    return given


def _written(grammar: WrittenGrammar, field: str) -> str:
    if grammar.syntax == "lark":
        return grammar.definition
    if grammar.syntax == "regex":
        check_pattern(field, grammar.definition)
        return f"start: /{regex_to_lark(grammar.definition or '(?:)', '')}/"
    return _converted(grammar.definition, field)


def _embedded(lark: str, field: str) -> str:
    """The grammar, with schemas inside it as the library keeps them. The bounds of schemas hold for
    these too. The library reports broken JSON."""
    made, start = "", 0
    places = list(re.finditer(r"%json\s*(?=\{)", lark))
    if len(places) > MAX_EMBEDDED:
        raise InvalidField(field, lark, f"at most {MAX_EMBEDDED} schemas stand in a grammar")
    for place in places:
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, place.end())
        except (ValueError, RecursionError):
            continue
        check_parts(schema, f"{field} %json")
        kept, escapes = _kept(schema), _escapes(schema, f"{field} %json")
        if escapes:
            kept["x-guidance"] = {**escapes, **_options(schema, f"{field} %json")}
        if kept != schema:
            made, start = f"{made}{lark[start : place.end()]}{json.dumps(kept)}", end
    return made + lark[start:]


def _converted(gbnf: str, field: str) -> str:
    if len(gbnf) > MAX_GBNF_CHARS:
        allowed = f"gbnf has at most {MAX_GBNF_CHARS} characters; larger grammars as lark"
        raise InvalidField(field, f"<{len(gbnf)} characters>", allowed)
    try:
        return gbnf_to_lark(gbnf)
    except RecursionError:
        raise InvalidField(field, gbnf, "nested too deeply") from None
    except Exception as error:  # the library raises bare Exception for mistakes in the text
        raise InvalidField(field, gbnf, one_line(error)) from None


def _tags(structures: Sequence[StructuralTag], triggers: Sequence[str], split: Split) -> str:
    """Any text, where the rest of a structure follows each trigger that begins one."""
    lines = ["tag_end: TEXT", "TEXT: /(.|\\n)*/"]
    names = []
    for i, trigger in enumerate(triggers):
        bodies = [
            _body(tag, trigger, split)
            for tag in structures
            if trigger == min((t for t in triggers if tag.begin.startswith(t)), key=len)
        ]
        if bodies:
            names.append(f"tag_{i}")
            lines += _tag_rules(f"tag_{i}", trigger, " | ".join(bodies), split)
    return "\n".join([f"start: ({' | '.join(names)})* tag_end", *lines])


def _tag_rules(name: str, trigger: str, bodies: str, split: Split) -> list[str]:
    pieces = split(trigger)
    if len(pieces) > 1:
        allowed = "a control token is a trigger of its own"
        raise InvalidField(f"{FIELD}.triggers", trigger, allowed)
    if isinstance(pieces[0], int):
        return [f"{name}: TEXT {_literal(pieces)} ({bodies})"]
    # A lazy lexeme ends at the first trigger.
    return [f"{name}_start[lazy]: TEXT {_literal(pieces)}", f"{name}: {name}_start ({bodies})"]


def _body(tag: StructuralTag, trigger: str, split: Split) -> str:
    inner = json.dumps(_schema(tag.json_schema, f"{FIELD}.structures schema"))
    begin, end = split(tag.begin[len(trigger) :]), split(tag.end)
    return f"{_literal(begin)} %json {inner} {_literal(end)}".strip()


def _literal(pieces: Sequence[str | int]) -> str:
    """Strings and control tokens in Lark's syntax."""
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
        if piece != ""
    )


def field_and_text(wanted: RequestResponseFormat) -> tuple[str, str]:
    """The field to name in an error about the whole grammar, and its value."""
    if wanted.grammar is not None:
        return f"{FIELD}.grammar.definition", wanted.grammar.definition
    if wanted.structures is not None:
        return f"{FIELD}.structures", "<tags>"
    return f"{FIELD}.schema", wanted.json_schema or ""


def one_line(error: object) -> str:
    """A message of the library on one line, at most 300 characters."""
    return " ".join(str(error).replace("<non-verbose/>", "").split())[:300]
