"""Finding the names of control tokens in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class ControlFinder:
    """Finds names leftmost first, and of several at one place the longest.

    A vocabulary may have thousands of control tokens, so a name is looked up in a table by its
    length rather than tried one after the other: time is linear in the text.
    """

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control
        self._lengths: dict[str, list[int]] = {}  # by first character, longest first
        for name in control:
            lengths = self._lengths.setdefault(name[:1], [])
            if name and len(name) not in lengths:
                lengths.append(len(name))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each name, in order, without overlaps."""
        place = 0
        while self._first is not None:
            candidate = self._first.search(text, place)
            if candidate is None:
                return
            start = candidate.start()
            end = self._end(text, start)
            if end:
                yield start, end, self._control[text[start:end]]
            place = end or start + 1

    def split(self, text: str) -> list[str | int]:
        """The text cut at the names; an id stands for each, empty strings are left out."""
        pieces: list[str | int] = []
        place = 0
        for start, end, token_id in self.find(text):
            if start > place:
                pieces.append(text[place:start])
            pieces.append(token_id)
            place = end
        if place < len(text):
            pieces.append(text[place:])
        return pieces

    def _end(self, text: str, start: int) -> int:
        """Where the name at `start` ends; 0 when there is none."""
        for length in self._lengths[text[start]]:
            if text[start : start + length] in self._control:
                return start + length
        return 0
