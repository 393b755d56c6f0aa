"""The JSON schema of a function's arguments, as calls are held to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.schema_kinds import DATA, SCHEMA, kind_of

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""The formats that a grammar can keep. JSON Schema says that others decide nothing."""
NOT_KEPT = frozenset(
    {"uniqueItems", "not", "contains", "minContains", "maxContains", "propertyNames"}
    | {"if", "then", "else", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords that a grammar cannot keep."""
_JOINING = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if")
"""With one of these, properties may stand elsewhere than in `properties`."""

_OWN_REFERENCE = re.compile(r"#(?!/(\$defs|definitions)/)(/|\Z)")
"""To the root of a schema, or to a part that is no definition."""


def arguments_schema(
    parameters: Mapping[str, object], field: str, *, strict: bool = False
) -> dict[str, object]:
    """The schema of an object. Without any property, the object is empty, as OpenAI's API says.

    An object with properties has no others, unless the schema speaks of them: a model would invent
    some. Keywords that cannot be kept are left out, and are refused later if `strict`. Raises
    `InvalidField` where no object fits the type. field: to name then.
    """
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        words = "the arguments of a function are an object: give object, or a list of types with it"
        raise InvalidField(f"{field}.type", kind, words)
    copied = _copied(parameters, SCHEMA, frozenset() if strict else NOT_KEPT)
    assert isinstance(copied, dict)
    if not any(name in parameters for name in _JOINING):
        copied.setdefault("properties", {})
        copied["additionalProperties"] = False
    copied.pop("type", None)
    return {"type": "object", **copied}


def not_kept(parameters: object, place: str, kind: int = SCHEMA) -> Iterator[str]:
    """The places of the keywords that `arguments_schema` leaves out."""
    if kind is DATA or not isinstance(parameters, Mapping | list):
        return
    pairs = parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters)
    for key, inner in pairs:
        name = key if isinstance(key, str) else None
        if kind is SCHEMA and name in NOT_KEPT:
            yield f"{place}.{name}"
        else:
            yield from not_kept(inner, f"{place}.{key}", kind_of(kind, name))


def with_single_types(node: object, kind: int = SCHEMA) -> object:
    """The same schema, with `anyOf` in place of a list of types, and of the type null."""
    if isinstance(node, list):
        return [with_single_types(one, kind) for one in node]
    if not isinstance(node, Mapping) or kind is DATA:
        return node
    found = {key: with_single_types(one, kind_of(kind, key)) for key, one in node.items()}
    given = found.get("type")
    if kind is SCHEMA and (given == "null" or isinstance(given, list)) and "anyOf" not in found:
        kinds = given if isinstance(given, list) else [given]
        found["anyOf"] = [{"type": one} for one in kinds]
        del found["type"]
    return found


def with_root_at(node: object, name: str, kind: int = SCHEMA) -> object:
    """The same schema inside another, which has the root of all references as a definition of this
    name, and its own definitions beside it."""
    if isinstance(node, list):
        return [with_root_at(one, name, kind) for one in node]
    if not isinstance(node, Mapping) or kind is DATA:
        return node
    found = {key: with_root_at(one, name, kind_of(kind, key)) for key, one in node.items()}
    target = found.get("$ref")
    if kind is SCHEMA and isinstance(target, str) and _OWN_REFERENCE.match(target):
        found["$ref"] = f"#/$defs/{name}{target[1:]}"
    return found


def _copied(node: object, kind: int, without: frozenset[str]) -> object:
    if isinstance(node, list):
        return [_copied(one, kind, without) for one in node]
    if not isinstance(node, Mapping) or kind is DATA:
        return node
    return {
        key: _copied(one, kind_of(kind, key), without)
        for key, one in node.items()
        if kind is not SCHEMA or (key not in without and _is_known(key, one))
    }


def _is_known(key: str, value: object) -> bool:
    return key != "format" or not isinstance(value, str) or value in FORMATS
