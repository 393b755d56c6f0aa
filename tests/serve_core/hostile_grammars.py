"""Grammars that try to use up time or memory, or to break the engine; each as (name, format).

A format is what a request gives as `response_format`. Nothing here is meant to be useful.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

Format = dict[str, Any]


def schema(value: Any) -> Format:
    return {"type": "json_object", "schema": json.dumps(value)}


def written(syntax: str, definition: str) -> Format:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def regex(pattern: str) -> Format:
    return written("regex", pattern)


def lark(text: str) -> Format:
    return written("lark", text)


def gbnf(text: str) -> Format:
    return written("gbnf", text)


def nested(depth: int, key: str = "a") -> Any:
    inner: Any = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {key: inner}, "required": [key]}
    return inner


def nested_any_of(depth: int, width: int) -> Any:
    return reduce(
        lambda inner, i: {"anyOf": [{"type": "array", "items": inner}] * width},
        range(depth),
        {"type": "string"},
    )


def nested_any_of_by_name(depth: int) -> Any:
    """As `nested_any_of` with a width of 2, written without repeating anything."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(depth):
        below = {"type": "array", "items": {"$ref": f"#/$defs/d{i}"}}
        definitions[f"d{i + 1}"] = {"anyOf": [below, {**below, "maxItems": 5}]}
    return {"$ref": f"#/$defs/d{depth}", "$defs": definitions}


def optional_properties(count: int) -> Any:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


def exploding_refs(depth: int) -> Any:
    """Every definition uses the next one twice."""
    definitions = {
        f"d{i}": {
            "type": "object",
            "properties": {s: {"$ref": f"#/$defs/d{i + 1}"} for s in "ab"},
            "required": ["a", "b"],
        }
        for i in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "null"}}}


def doubling_lark(depth: int) -> str:
    rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(depth)]
    return "\n".join(["start: r0", *rules, f'r{depth}: "x"'])


def many_rules(count: int) -> str:
    rules = [f'r{i} ::= "a" r{i + 1}' for i in range(count)]
    return "\n".join(["root ::= r0", *rules, f'r{count} ::= "x"'])


def hostile() -> Iterator[tuple[str, Format]]:
    yield from _schemas()
    yield from _patterns()
    yield from _regexes()
    yield from _written()


def _schemas() -> Iterator[tuple[str, Format]]:
    yield "huge enum", schema({"enum": [f"value number {i}" for i in range(8000)]})
    yield "enum beyond the limit", schema({"enum": list(range(20_000))})
    yield "enum of long strings", schema({"enum": ["x" * 1000 + str(i) for i in range(200)]})
    yield "10-deep anyOf, doubling", schema(nested_any_of(10, 2))
    yield "wide anyOf", schema({"anyOf": [nested(2, f"k{i}") for i in range(450)]})
    yield "5000 optional properties", schema(optional_properties(5000))
    yield "1000 optional properties", schema(optional_properties(1000))
    yield "200-deep object", schema(nested(200))
    yield "30-deep object", schema(nested(30))
    yield "reference to itself", schema({"$ref": "#"})
    yield (
        "circle of references",
        schema(
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
        ),
    )
    yield (
        "must contain itself",
        schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    )
    yield "reference to nowhere", schema({"$ref": "#/$defs/none"})
    yield "16-deep anyOf", schema(nested_any_of_by_name(16))
    yield "remote reference", schema({"$ref": "https://example.org/schema.json"})
    yield "file reference", schema({"$ref": "file:///etc/passwd"})
    yield "references that double", schema(exploding_refs(25))
    yield "maxLength 1e9", schema({"type": "string", "maxLength": 10**9})
    yield "minLength 1e9", schema({"type": "string", "minLength": 10**9})
    yield "minItems 1e9", schema({"type": "array", "minItems": 10**9, "items": {"type": "null"}})
    yield (
        "nested minItems",
        schema(
            reduce(
                lambda inner, _: {"type": "array", "minItems": 50, "maxItems": 50, "items": inner},
                range(6),
                {"type": "boolean"},
            )
        ),
    )
    yield "huge bounds", schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300})
    yield "empty range", schema({"type": "integer", "minimum": 5, "maximum": 4})
    yield "multipleOf tiny", schema({"type": "number", "multipleOf": 1e-12})
    yield "false", {"type": "json_object", "schema": "false"}
    yield "empty enum", schema({"enum": []})
    yield "impossible allOf", schema({"allOf": [{"type": "string"}, {"type": "integer"}]})
    yield (
        "many allOf",
        schema({"allOf": [{"type": "string", "pattern": f"[^{c}]*{c}"} for c in "abcdefghijkl"]}),
    )
    yield "not", schema({"not": {"type": "string"}})
    yield "wrong type name", schema({"type": "strnig"})
    yield "type of wrong type", schema({"type": 17})
    yield "properties of wrong type", schema({"type": "object", "properties": [1, 2]})
    yield "lone surrogate", {"type": "json_object", "schema": '{"const": "\\ud800"}'}


def _patterns() -> Iterator[tuple[str, Format]]:
    for name, pattern in {
        "nested repeats in pattern": "^(a{1,100}){1,100}$",
        "look-ahead in pattern": "^(?=.*a)(?=.*b).*$",
        "back reference in pattern": "^(a+)\\1$",
        "unclosed pattern": "^(((((a",
    }.items():
        yield name, schema({"type": "string", "pattern": pattern})


def _regexes() -> Iterator[tuple[str, Format]]:
    yield "catastrophic regex", regex("(a+)+(a+)+(a+)+$")
    yield "nested repeats", regex("((a{1,100}){1,100}){1,100}")
    yield "long window", regex(".{0,20000}a.{0,20000}b")
    yield "n-th from the end", regex("(a|b)*a(a|b){400}")
    yield "look-behind", regex("(?<=a)b")
    yield "unicode classes", regex("(\\p{L}\\p{N}\\p{P}){1,2000}")
    yield "deep parentheses", regex("(" * 50_000 + "a" + ")" * 50_000)
    yield "many alternatives", regex("|".join(f"word{i}x*y" for i in range(20_000)))
    yield "nothing matches", regex("[^\\x00-\\x{10FFFF}]")
    yield "only the empty text", regex("")


def _written() -> Iterator[tuple[str, Format]]:
    yield "start: start", lark("start: start")
    yield "no way to end", lark('start: "x" start')
    yield "left recursion", lark('start: start start | "a" |')
    yield "doubling rules", lark(doubling_lark(40))
    yield "ambiguous", lark('start: s\ns: s s s | s s | "a"')
    yield "undefined rule", lark("start: nobody")
    yield "no start", lark('begin: "x"')
    yield "unclosed string", lark('start: "x')
    yield "repeat of a rule", lark('start: x{1000000}\nx: "a" | "b" x')
    yield (
        "nested repeats of rules",
        lark('start: a{100}\na: b{100}\nb: c{100}\nc: d{100}\nd: "x" | "y"'),
    )
    yield "complement", lark("start: T\nT: ~/(.|\\n)*(a|b)(.|\\n){300}/ & /(.|\\n)*/")
    yield (
        "embedded schema with a remote reference",
        lark('start: %json {"$ref": "https://example.org/x"}'),
    )
    yield "embedded self reference", lark('start: %json {"$ref": "#"}')
    yield "gbnf circle", gbnf("root ::= a\na ::= b\nb ::= a")
    yield "gbnf nested repeats", gbnf('root ::= (("a" | "b"){0,1000} "c"){0,1000}')
    yield "gbnf of many rules", gbnf(many_rules(12_000))
    yield "gbnf of a few hundred rules", gbnf(many_rules(700))
    yield "gbnf that is not one", gbnf("root ::= ::= (((")
    yield "gbnf deep parentheses", gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000)
