"""Keeps text of people from becoming control tokens on its way through a template."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from mlc_llm.errors import InvalidField
from mlc_llm.tokenizers import Tokenizer

_MARKS = [chr(point) for point in range(0xF8FF, 0xE000, -1)]
"""Private-use characters; one that occurs nowhere is taken."""


class Guard:
    """Puts a mark into every name of a control token inside messages before they are rendered,
    and takes the marks out of the pieces between the control tokens afterwards.

    Marked too are the ends of a text that could make a name together with what the template puts
    beside them. A text without such things goes through unchanged.
    """

    def __init__(self, tokenizer: Tokenizer, *, avoid: Any) -> None:
        """`avoid` holds all the texts in which the mark may not occur."""
        self._tokenizer = tokenizer
        texts = list(_texts(avoid))
        free = (one for one in _MARKS if not any(one in t or _escaped(one) in t for t in texts))
        self._mark = next(free, "")
        if not self._mark:
            raise InvalidField("messages", "...", "the texts use all private characters")
        self.is_used = False
        """Whether anything was marked."""

    def protect(self, value: Any) -> Any:
        """A copy of plain data (as JSON) with all its texts marked where needed."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(inner) for inner in value]
        return value

    def release(self, piece: str | int) -> str | int:
        """A piece of the rendered text without marks, also where JSON escaped them."""
        if isinstance(piece, int):
            return piece
        return piece.replace(self._mark, "").replace(_escaped(self._mark), "")

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
    """The mark as JSON writes it in ASCII."""
    return f"\\u{ord(mark):04x}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
