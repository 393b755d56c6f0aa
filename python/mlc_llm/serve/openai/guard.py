"""Prevents that text of people becomes control tokens when a template is rendered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from mlc_llm.errors import InvalidField
from mlc_llm.tokenizers import Tokenizer

_MARKS = [chr(point) for point in range(0xF8FF, 0xE000, -1)]
"""Private-use characters. The mark is the first one that no text has."""


class Guard:
    """Puts a mark into every name of a control token in messages before they are rendered, and
    removes the marks afterwards from the pieces between the control tokens.

    It also marks an end of a text that could make such a name together with the text that the
    template puts beside it. Other texts do not change.
    """

    def __init__(self, tokenizer: Tokenizer, *, avoid: object) -> None:
        """`avoid`: JSON values with all texts in which the mark must not occur."""
        self._tokenizer = tokenizer
        texts = list(_texts(avoid))
        free = (one for one in _MARKS if not any(one in t or _escaped(one) in t for t in texts))
        self._mark = next(free, "")
        if not self._mark:
            raise InvalidField("messages", "...", "the texts use all private characters")
        self.is_used = False
        """Whether anything was marked."""

    def protected(self, fields: Mapping[str, object]) -> dict[str, object]:
        """A copy of an object of JSON values, with marks in all its texts where needed."""
        return {
            # A key of another type is refused when the template is rendered.
            self._marked(key) if isinstance(key, str) else key: self._protected(value)
            for key, value in fields.items()
        }

    def release(self, piece: str | int) -> str | int:
        """A piece of the rendered text without marks, also where JSON has escaped them."""
        if isinstance(piece, int):
            return piece
        return piece.replace(self._mark, "").replace(_escaped(self._mark), "")

    def _protected(self, value: object) -> object:
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, Mapping):
            return self.protected(value)
        if isinstance(value, list | tuple):
            return [self._protected(inner) for inner in value]
        return value

    def _marked(self, text: str) -> str:
        places = [start + 1 for start, _ in self._tokenizer.control_spans(text)]
        if self._tokenizer.begins_inside_control(text):
            places.insert(0, 0)
        if self._tokenizer.ends_inside_control(text):
            places.append(len(text))
        if not places:
            return text
        self.is_used = True
        return self._mark.join(
            text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])
        )


def _escaped(mark: str) -> str:
    """The mark as JSON in ASCII writes it."""
    return f"\\u{ord(mark):04x}"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
