"""Reads JSON from outside. Whatever is wrong with a text, the error is a `UserError`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

from mlc_llm.errors import UserError

if TYPE_CHECKING:
    from mlc_llm.protocol.json_value import JsonValue


def parse_json(text: str | bytes, what: str) -> JsonValue:
    """The value of a JSON text. NaN, Infinity and endless nesting are refused.

    Raises `UserError`. Its message begins with "Failed to parse JSON" and names `what`.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise UserError(f"Failed to parse JSON of {what}: nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"Failed to parse JSON of {what}: {_one_line(error)}") from None
    return value


def parse_json_object(text: str | bytes, what: str) -> dict[str, JsonValue]:
    """Like `parse_json`, for a text that must hold an object."""
    value = parse_json(text, what)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise UserError(f"Failed to parse JSON of {what}: expected an object, found {kind}")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
