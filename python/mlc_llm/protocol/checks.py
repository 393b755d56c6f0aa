"""Checks of single values. Each returns the value in its one form, or raises `InvalidField`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import cast

from mlc_llm.errors import InvalidField

MAX_INT32 = 2**31 - 1
"""The largest count and the largest token id: compiled code stores both as 32-bit integers."""

_TOKEN_ID = re.compile(r"[0-9]{1,10}\Z")


class _Huge:
    """Replaces an integer that is too long to print, in an error."""

    def __init__(self, value: Integral) -> None:
        self._bits = int(value).bit_length()

    def __repr__(self) -> str:
        return f"<integer of {self._bits} bits>"


def refuse(field: str, value: object, allowed: str) -> InvalidField:
    """The error for a wrong value. It can always be printed, whatever the value is."""
    if isinstance(value, Integral) and int(value).bit_length() > 256:
        value = _Huge(value)
    return InvalidField(field, value, allowed)


def shown(text: str) -> str:
    """The beginning of a text for an error of one line, quoted if it cannot be printed."""
    return text[:64] if text.isprintable() else repr(text[:64])


def wrong_type(field: str, value: object, wanted: str) -> InvalidField:
    """The error for a value of the wrong type."""
    return refuse(field, value, f"unexpected value type {type(value).__name__}; {wanted}")


def integer(field: str, value: object, low: int, high: int, allowed: str = "") -> int:
    """An int in [low, high]. A bool or a float is refused, also 1.0."""
    allowed = allowed or f"should be an integer in range [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_type(field, value, allowed)
    if not low <= int(value) <= high:
        raise refuse(field, value, allowed)
    return int(value)


def number(field: str, value: object, low: float, high: float, allowed: str = "") -> float:
    """A finite float in [low, high]. Ints are accepted, bools are not."""
    allowed = allowed or f"should be a number in range [{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(field, value, allowed)
    if value < low or not value <= high:  # NaN is refused by the second
        raise refuse(field, value, allowed)
    return float(value)


def boolean(field: str, value: object) -> bool:
    """True or False; 1 and "true" are refused."""
    if not isinstance(value, bool):
        raise wrong_type(field, value, "should be true or false")
    return value


def string(field: str, value: object, max_chars: int, *, min_chars: int = 0) -> str:
    """A text of limited length that can be written as UTF-8 (no lone surrogates)."""
    allowed = f"should be a string of {min_chars} to {max_chars} characters"
    if not isinstance(value, str):
        raise wrong_type(field, value, allowed)
    if not min_chars <= len(value) <= max_chars:
        raise refuse(field, value, allowed)
    return utf8(field, value)


def utf8(field: str, value: str) -> str:
    """The text itself if it can be written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        at = error.start
        raise refuse(field, value[at : at + 1], f"lone surrogate at character {at}") from None
    return value


def one_of(field: str, value: object, choices: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise refuse(field, value, f"should be one of {', '.join(choices)}")
    return value


def listing(field: str, value: object, max_items: int) -> list[object]:
    """A list or tuple of limited length. A string is refused."""
    allowed = f"should be a list of at most {max_items} items"
    if not isinstance(value, (list, tuple)):
        raise wrong_type(field, value, allowed)
    if len(value) > max_items:
        raise InvalidField(field, f"<{len(value)} items>", allowed)
    return list(value)


def token_ids(field: str, value: object, max_items: int) -> list[int]:
    """A list of token ids. The engine checks later whether the model has these tokens."""
    items = listing(field, value, max_items)
    if set(map(type, items)) == {int}:  # as nearly always; one by one is slow
        numbers = cast("list[int]", items)
        if min(numbers) >= 0 and max(numbers) <= MAX_INT32:
            return numbers
    return [integer(f"{field}[{i}]", item, 0, MAX_INT32) for i, item in enumerate(items)]


def token_id_key(field: str, key: object) -> int:
    """A token id that is a key of an object. In JSON it is a string of digits."""
    if isinstance(key, str) and _TOKEN_ID.match(key):
        key = int(key)
    return integer(f"{field} key", key, 0, MAX_INT32, f"should be a token id in [0, {MAX_INT32}]")


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to this one. Names that begin with it come first."""
    from difflib import get_close_matches

    names = list(known)
    longer = [one for one in names if len(name) > 2 and one.startswith(name)]
    found = get_close_matches(name[:64], longer or names, n=1, cutoff=0.0)
    return found[0] if found else ""


def known_field(name: object, value: object, known: Iterable[str]) -> str:
    """The name itself if it is known. Raises `InvalidField` that names the nearest known one."""
    names = list(known)
    if not isinstance(name, str) or name not in names:
        raise refuse(
            str(name)[:64],
            value,
            f"unknown field; the nearest known is {nearest(str(name), names)!r}",
        )
    return name
