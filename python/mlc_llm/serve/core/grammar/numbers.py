"""Numbers of JSON schemas, which the grammar library keeps as float64 and, if whole, in 64 bits.

What would become another number is refused. Bounds become others that the library keeps, so that
each number which they allow is still one that the schema allows:

* Bounds beyond 64 bits move inside. Near the least number the library ends the process.
* Of numbers that need not be whole, the library writes a bound beyond 2^53 with 17 digits, which
  may be a little outside. It becomes one whose digits are inside.
* A bound that is excluded and whole becomes the next number: of 0 < x <= 0.5 the library allows 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TypeAlias, TypeGuard

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.schema_kinds import SCHEMA, kind_of

Schema: TypeAlias = "dict[str, JsonValue]"

LARGEST = 2**53
"""Whole numbers up to this size are exact in float64."""
MOST = 2**63 - 1024
"""The largest float64 in 64 bits."""
LEAST = -MOST + 1024
LEAST_STEP = 1e-12
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def check_numbers(node: Schema, field: str) -> None:
    """Raise `InvalidField` for a number of this part of a schema that cannot be kept."""
    for key in ("const", "enum"):
        for number in _numbers(node.get(key)):
            if abs(number) > LARGEST:
                allowed = f"a number of at most {LARGEST} in size; write a larger one as a string"
                raise InvalidField(f"{field} {key}", number, allowed)
    for keys, is_wider, is_beyond in (
        (LOWER, lambda kept, given: kept < given, lambda given: given > MOST),
        (UPPER, lambda kept, given: kept > given, lambda given: given < LEAST),
    ):
        for key in keys:
            value = node.get(key)
            if _is_number(value):
                _check_bound(f"{field} {key}", value, is_wider, is_beyond)


def _check_bound(
    field: str,
    value: float,
    is_wider: Callable[[float, float], bool],
    is_beyond: Callable[[float], bool],
) -> None:
    if is_beyond(value):
        raise InvalidField(field, value, f"numbers are from {LEAST} to {MOST}")
    if LEAST <= value <= MOST and is_wider(float(value), value):
        allowed = f"beyond {LARGEST} a bound has to be a number that float64 has"
        raise InvalidField(field, value, allowed)


def kept_parts(node: Schema, kind: int = SCHEMA) -> Schema:
    """A copy of a schema that `check_numbers` accepts, with bounds that the library keeps."""
    made = {key: _kept(one, kind_of(kind, key)) for key, one in node.items()}
    if kind is SCHEMA:
        _move(made, LOWER, max, 1.0)
        _move(made, UPPER, min, -1.0)
    return made


def _kept(value: JsonValue, kind: int) -> JsonValue:
    if isinstance(value, list):
        return [_kept(one, kind) for one in value]
    return kept_parts(value, kind) if isinstance(value, dict) else value


def _move(
    node: Schema, keys: tuple[str, str], inner: Callable[[float, float], float], sign: float
) -> None:
    """Move the bounds on one side; sign: towards what they allow."""
    end, is_whole = LEAST if sign > 0 else MOST, node.get("type") == "integer"
    for key in keys:
        value = node.get(key)
        if _is_number(value):
            value = inner(value, end)
            node[key] = value if is_whole or abs(value) <= LARGEST else _digits_inside(value, sign)
    bound, excluded = (node.get(key) for key in keys)
    if is_whole or not _is_number(excluded):
        return
    if excluded * sign < 0 or excluded % 1 or abs(excluded) > 2**40:
        return
    beside = excluded + sign * max(LEAST_STEP, 4 * math.ulp(excluded))
    del node[keys[1]]
    node[keys[0]] = inner(bound, beside) if _is_number(bound) else beside


def _digits_inside(value: float, sign: float) -> float:
    """The next float64 whose shortest digits are not outside of the value."""
    found = float(value)
    while (Decimal(repr(found)) - Decimal(value)) * int(sign) < 0:
        found = math.nextafter(found, sign * math.inf)
    return found


def _numbers(value: JsonValue) -> Iterator[float]:
    """All numbers of a value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif _is_number(one):
            yield one


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
