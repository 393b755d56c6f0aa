"""Patterns of JSON schemas, in a form that the grammar library keeps when it quotes them.

A class of characters that has all control characters, or all but the line feed, may be written
with every escape that JSON has, so `[^"]` would allow a quote. The library does so. Without NUL
(which no text needs) a class is quoted one character at a time. `--` takes it out.
"""

from __future__ import annotations

import re

from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.schema_kinds import NAMES, SCHEMA, kind_of
from mlc_llm.serve.core.grammar.numbers import Schema

_PIECE = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\.|\[\^?\]?|\]|[^\\\[\]]+", re.DOTALL)
"""A Unicode property, an escape, the beginning of a class, the end of one, or other text. A `]`
that comes first in a class is a letter of it."""
_MAY_HAVE_NUL = re.compile(r"\[\^|\\[pPWDSxu]|[\x00-\x1f]")

_SECONDS = r":[0-5][0-9][.Zz+-]"
"""Of a time without a leap second. Nothing has one of these behind it but seconds."""
_LEAP_YEAR = "..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00"
_DAY = f"^(?:.{{5}}(?:0[13-9]|1|02-(?:[01]|2[0-8]))|(?:{_LEAP_YEAR})-02-29)"
_OF_FORMATS = {"time": _SECONDS, "date": _DAY, "date-time": f"{_DAY}.*{_SECONDS}"}
"""What the library leaves out of formats: it takes February 29 in each year, and second 60 in each
minute. RFC 3339 has that at the end of a month alone, and most readers do not know it."""


def kept_pattern(pattern: str) -> str:
    """The pattern without NUL in its classes, and in Unicode properties."""
    made, depth, start = "", 0, 0
    for found in _PIECE.finditer(pattern):
        piece = found[0]
        if piece[0] == "[":
            start = found.start() if not depth else start
            depth += 1
        elif piece == "]" and depth:
            depth -= 1
            if not depth:
                made += _without_nul(pattern[start : found.end()])
        elif not depth:
            made += _without_nul(piece) if piece[:2] in (r"\p", r"\P") else piece
    return made if not depth else pattern


def _without_nul(one: str) -> str:
    """A class, or a Unicode property."""
    return f"[{one}--\\x00]" if _MAY_HAVE_NUL.search(one) else one


def kept_patterns(node: Schema, kind: int = SCHEMA) -> Schema:
    """A copy of a schema, with patterns that the library keeps."""
    made: Schema = {}
    for key, one in node.items():
        inner = kind_of(kind, key)
        if kind is SCHEMA and key == "pattern" and isinstance(one, str):
            made[key] = kept_pattern(one)
        elif kind is SCHEMA and key == "patternProperties" and isinstance(one, dict):
            made[key] = _named(kept_patterns(one, NAMES))
        else:
            made[key] = _kept(one, inner)
    if kind is SCHEMA:
        _hold_to_format(made)
    return made


def _hold_to_format(node: Schema) -> None:
    name = node.get("format")
    pattern = _OF_FORMATS.get(name) if isinstance(name, str) else None
    others = node.get("allOf", [])
    if pattern is not None and "pattern" not in node:
        node["pattern"] = pattern
    elif pattern is not None and isinstance(others, list):
        node["allOf"] = [*others, {"pattern": pattern}]


def _kept(value: JsonValue, kind: int) -> JsonValue:
    if isinstance(value, list):
        return [_kept(one, kind) for one in value]
    return kept_patterns(value, kind) if isinstance(value, dict) else value


def _named(by_pattern: Schema) -> Schema:
    """What stands under patterns. No two of them become one."""
    made = {kept_pattern(pattern): one for pattern, one in by_pattern.items()}
    return made if len(made) == len(by_pattern) else by_pattern
