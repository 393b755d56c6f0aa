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


def chain(count: int, link: Any) -> Any:
    """Definitions each of which uses the next one as `link` says."""
    parts = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "null"}}}


def chain_of_rules(count: int, rule: str = "r{} : r{}") -> str:
    rules = [rule.format(i, i + 1) for i in range(count)]
    last = rule.format(count, "").split(":")[0]
    return "\n".join([f"start: {rule[0]}0", *rules, f'{last}: "x"'])


def hostile() -> Iterator[tuple[str, Format]]:
    yield from _schemas()
    yield from _chains()
    yield from _large()
    yield from _optional()
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


def _chains() -> Iterator[tuple[str, Format]]:
    """The library goes down them by recursion: on a usual stack they end the process."""
    yield "chain of references", schema(chain(6000, lambda ref: ref))
    yield "chain of arrays", schema(chain(5000, lambda ref: {"items": ref}))
    yield "chain of choices", schema(chain(3000, lambda ref: {"anyOf": [ref, {"type": "null"}]}))
    yield "chain of properties", schema(chain(950, lambda ref: {"properties": {"a": ref}}))
    yield "chain of maps", schema(chain(4000, lambda ref: {"additionalProperties": ref}))
    yield "embedded chain", lark("start: %json " + json.dumps(chain(6000, lambda ref: ref)))
    yield "chain of rules", lark(chain_of_rules(15_000))
    yield "chain of terminals", lark(chain_of_rules(15_000, "T{} : T{}"))
    yield "chain of complements", lark(chain_of_rules(15_000, "T{} : ~T{}"))
    yield (
        "gbnf chain",
        gbnf("\n".join([*(f"r{i} ::= r{i + 1}" for i in range(900)), "root ::= r0"])),
    )


def _large() -> Iterator[tuple[str, Format]]:
    yield "10 MB schema", {"type": "json_object", "schema": json.dumps({"const": "x" * 10**7})}
    yield "10 MB of brackets", {"type": "json_object", "schema": "[" * 10**7}
    yield "100,000 properties", schema(optional_properties(100_000))
    yield "embedded 3,000 properties", lark(f"start: %json {json.dumps(optional_properties(3000))}")
    yield "many embedded schemas", lark("start: " + " ".join(['%json {"a": "'] * 10_000))
    yield "huge const", schema({"const": "x" * 200_000})
    yield "const of many keys", schema({"const": {f"k{i}": i for i in range(6000)}})
    yield "1 MB regex", regex("a|" * 500_000 + "b")
    yield "giant terminal", lark("start: T\nT: " + " | ".join(f'"w{i}x"' for i in range(15_000)))
    yield "giant string", lark(f'start: "{"x" * 100_000}"')
    yield "number beyond floats", {"type": "json_object", "schema": '{"maximum": 1e400}'}
    yield (
        "number of 10,000 digits",
        {"type": "json_object", "schema": '{"const": ' + "9" * 10_000 + "}"},
    )


def _optional() -> Iterator[tuple[str, Format]]:
    """States of the lexer that grow by the square."""
    yield "optional letters", regex("a?" * 20_000)
    yield "optional unicode classes", regex("\\p{L}?" * 4000)
    yield "empty alternatives", regex("(a|)" * 20_000)
    yield "stars", regex("a*b*" * 6000)
    yield "optional letters in a pattern", schema({"type": "string", "pattern": "a?" * 20_000})
    yield "optional terminals", lark("start: T\nT: " + "A " * 16_000 + '\nA: "a" | ""')
    yield (
        "doubling terminals",
        lark(
            "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(14)) + "\nT14: /a?/"
        ),
    )
    yield "nearly too many optional parts", regex("\\w?" * 1000)
    yield "repeated optional", regex("(a?b*c?){5000}")
    yield "repeat of 100,000", regex("(abc|abd|xyz){1,100000}")
    yield "exactly 50,000", regex("a{50000}")
    yield "two windows", regex(".{1,100000}foo.{1,100000}bar")
    yield "unicode window", regex("\\p{L}{1,100000}\\p{N}")
    yield "folded case", regex("(?i)(stra\u00dfe|\ufb01|\u017f|K){1,5000}")
    yield "overlapping alternatives", regex("|".join(f".*{c}.*" for c in "abcdefghijklmnopqrst"))
    yield (
        "windows of alternatives",
        regex("(" + "|".join(f"[^{c}]*{c}[^{c}]*" for c in "abcdefghijklmnop") + "){1,50}"),
    )
    yield (
        "many patterns at once",
        lark(
            "start: ("
            + " | ".join(f"T{i}" for i in range(300))
            + ")*\n"
            + "\n".join(f"T{i}: /.*a.{{{i}}}b/" for i in range(300))
        ),
    )


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
