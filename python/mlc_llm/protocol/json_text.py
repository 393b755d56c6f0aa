"""Reads JSON from outside. Whatever is wrong with a text, the error is a `UserError`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NoReturn

from mlc_llm.errors import UserError, one_line
from mlc_llm.protocol import checks

if TYPE_CHECKING:
    from mlc_llm.protocol.json_value import JsonValue

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that is half a character, or a whole one together with the next escape."""


def parse_json(text: str | bytes, what: str) -> JsonValue:
    """The value of a JSON text. NaN, Infinity and endless nesting are refused.

    Raises `UserError`. Its message begins with "Failed to parse JSON" and names `what`.
    """
    return _parse(text, what)[1]


def parse_json_object(text: str | bytes, what: str) -> dict[str, JsonValue]:
    """Like `parse_json`, for a text that must hold an object. Its names and texts can be written
    as UTF-8: `InvalidField` names the place of one that cannot."""
    written, value = _parse(text, what)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise UserError(f"Failed to parse JSON of {what}: expected an object, found {kind}")
    if _SURROGATE.search(written) is not None:
        _check_unicode(value)
    return value


def _parse(text: str | bytes, what: str) -> tuple[str, JsonValue]:
    """The text as characters, and its value. Raises like `parse_json`."""
    try:
        written = _unicode(text)
        return written, json.loads(written, parse_constant=_refuse_constant)
    except RecursionError:
        raise UserError(f"Failed to parse JSON of {what}: nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"Failed to parse JSON of {what}: {one_line(error)}") from None


def _unicode(text: str | bytes) -> str:
    """The text itself. Raises ValueError for what is not Unicode, which json.loads lets pass."""
    if isinstance(text, (bytes, bytearray)):
        return text.decode(json.detect_encoding(text))
    if isinstance(text, str):
        text.encode("utf-8")
    return text


def _check_unicode(fields: dict[str, JsonValue]) -> None:
    """Refuse a lone surrogate in any field. The library looks for it, because a walk of ours
    through a large request would hold up the others."""
    for name, value in fields.items():
        checks.utf8("the name of a field", name)
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            before = error.object[max(0, error.start - 20) : error.start]
            words = f"lone surrogate after {before!r}"
            raise checks.refuse(_shown(name), error.object[error.start], words) from None


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= 80 else "a field"


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
