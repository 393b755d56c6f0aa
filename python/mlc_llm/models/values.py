"""Numbers out of a model file's header, each checked, with the field's name in the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from mlc_llm.errors import ModelFileError, UnsupportedModel

Choice = TypeVar("Choice")
LARGEST_COUNT = 2**31
MOST_LAYERS = 10_000
"""More layers than any model has: each takes memory before its tensors are looked for."""


class Values:
    """Fields by name. A field that is absent has the default, if there is one."""

    def __init__(self, fields: Mapping[str, object], prefix: str, *, null_is_absent: bool) -> None:
        """prefix: what stands before each name, in `fields` and in errors."""
        self._fields, self._prefix, self._null_is_absent = fields, prefix, null_is_absent

    def count(self, key: str, default: int | None = None, most: int = LARGEST_COUNT - 1) -> int:
        """A whole number above 0. Raises ModelFileError."""
        value = self.get(key, default)
        if type(value) is not int or not 0 < value <= most:
            raise self.wrong(key, value, "a whole number above 0")
        return value

    def whole(self, key: str) -> int:
        """A whole number, 0 or more; 0 if it is not there. Raises ModelFileError."""
        return self.count(key) if self.get(key) else 0

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0. Raises ModelFileError."""
        value = self.get(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < 1e30:  # type: ignore[operator]
            raise self.wrong(key, value, "a number above 0")
        return float(value)  # type: ignore[arg-type]

    def cap(self, key: str, default: float | None = None) -> float | None:
        """A number above 0; 0 or no field means that there is no cap. Raises ModelFileError."""
        value = self.get(key, default)
        return None if value is None or value == 0 else self.positive(key, default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Raises ModelFileError."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def flags(self, key: str, length: int) -> list[bool]:
        """A list of so many truth values, which may be numbers. Raises ModelFileError."""
        value = self.get(key)
        found = value if isinstance(value, list) else []
        if len(found) != length or any(one not in (0, 1) for one in found):
            raise self.wrong(key, value, f"a list of {length} times 0 or 1")
        return [bool(one) for one in found]

    def choice(self, key: str, allowed: Mapping[str, Choice], default: str | None = None) -> Choice:
        """What stands in `allowed` for the text. Raises UnsupportedModel."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self._unsupported(key, value, *allowed)
        return allowed[value]

    def refuse_unless(self, key: str, *allowed: object) -> None:
        """Raises UnsupportedModel if the field is there and has none of these values."""
        if self.has(key) and self.get(key) not in allowed:
            raise self._unsupported(key, self.get(key), *allowed)

    def counts(self, key: str, most: int, default: Sequence[int] = ()) -> frozenset[int]:
        """A list of whole numbers from 0 to below `most`. Raises ModelFileError."""
        value = self.get(key, list(default))
        if not isinstance(value, list) or not all(
            type(one) is int and 0 <= one < most for one in value
        ):
            raise self.wrong(key, value, f"a list of whole numbers below {most}")
        return frozenset(value)

    def numbers(self, key: str, length: int) -> tuple[int, ...]:
        """A list of so many whole numbers, 0 or more. Raises ModelFileError."""
        value = self.get(key)
        found = value if isinstance(value, list) else []
        known = [one for one in found if type(one) is int and 0 <= one < LARGEST_COUNT]
        if not len(known) == len(found) == length:
            raise self.wrong(key, value, f"a list of {length} whole numbers")
        return tuple(known)

    def positives(self, key: str, length: int) -> tuple[float, ...]:
        """A list of so many numbers above 0. Raises ModelFileError."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(key, value, f"a list of {length} numbers above 0")
        inner = {f"{self._prefix}{key}.{i}": one for i, one in enumerate(value)}
        numbers = Values(inner, f"{self._prefix}{key}.", null_is_absent=False)
        return tuple(numbers.positive(str(i)) for i in range(length))

    def window(self, key: str, context: int) -> int | None:
        """Tokens that a token sees; None if the field is absent or 0, or if they are all of the
        context. Raises ModelFileError."""
        size = 0 if self.get(key, 0) == 0 else self.count(key)
        return size if 0 < size < context else None

    def check(self, key: str, is_right: bool, expected: str) -> None:
        """Raises ModelFileError for the field if it is not right."""
        if not is_right:
            raise self.wrong(key, self.get(key), expected)

    def texts(self, key: str, length: int, allowed: Sequence[str]) -> tuple[str, ...]:
        """A list of so many texts, each one of those allowed. Raises ModelFileError."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(key, value, f"a list of {length} texts")
        for one in value:
            if one not in allowed:
                raise self._unsupported(key, one, *allowed)
        return tuple(value)

    def part(self, key: str) -> Values:
        """The fields of a field. Raises ModelFileError."""
        inner = {f"{self._prefix}{key}.{name}": one for name, one in self.mapping(key).items()}
        return Values(inner, f"{self._prefix}{key}.", null_is_absent=self._null_is_absent)

    def mapping(self, key: str) -> Mapping[str, object]:
        """The same, unchecked. Raises ModelFileError."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return value

    def also(self, fields: Mapping[str, object]) -> Values:
        """With these fields too, which replace those of the same names."""
        more = {self._prefix + name: one for name, one in fields.items()}
        whole = {**self._fields, **more}
        return Values(whole, self._prefix, null_is_absent=self._null_is_absent)

    def has(self, key: str) -> bool:
        name = self._prefix + key
        is_null = self._null_is_absent and self._fields.get(name) is None
        return name in self._fields and not is_null

    def get(self, key: str, default: object = None) -> object:
        """The field's value, unchecked."""
        return self._fields[self._prefix + key] if self.has(key) else default

    def wrong(self, key: str, value: object, expected: str) -> ModelFileError:
        """The error for a field whose value is not as expected."""
        return ModelFileError(f"{self._prefix}{key} is {_shown(value)}; {expected} was expected")

    def _unsupported(self, key: str, value: object, *allowed: object) -> UnsupportedModel:
        known = ", ".join(str(one) for one in allowed) or "none"
        return UnsupportedModel(f"{self._prefix}{key} is {_shown(value)}; supported: {known}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
