"""Finds the names of control tokens in a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property


class ControlFinder:
    """Finds the leftmost name first; of several names at one position, the longest.

    A vocabulary may have thousands of control tokens. For each length of a name there is one look
    into a table, so the time is linear in the text.
    """

    def __init__(self, control: Mapping[str, int], words: Collection[int] = ()) -> None:
        """words: ids of names that are only names where no word goes on before or behind them."""
        self._control = control
        self._words = words
        self._lengths: dict[str, list[int]] = {}  # by first character, longest first
        for name in control:
            lengths = self._lengths.setdefault(name[:1], [])
            if name and len(name) not in lengths:
                lengths.append(len(name))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        self._longest = max(map(len, control), default=0)
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each name, in order, without overlaps; also of those in words."""
        position = 0
        while self._first is not None:
            candidate = self._first.search(text, position)
            if candidate is None:
                return
            start = candidate.start()
            end = self._end(text, start)
            if end:
                yield start, end, self._control[text[start:end]]
            position = end or start + 1

    def split(self, text: str) -> list[str | int]:
        """The text cut at the names, each replaced by its id. Empty strings are left out."""
        pieces: list[str | int] = []
        position = 0
        for start, end, token_id in self.find(text):
            if token_id in self._words and _is_in_word(text, start, end):
                continue
            if start > position:
                pieces.append(text[position:start])
            pieces.append(token_id)
            position = end
        if position < len(text):
            pieces.append(text[position:])
        return pieces

    def begins_inside(self, text: str) -> bool:
        """Whether the text begins with the end of a name, so that other text before it may complete
        the name."""
        tails = self._ends[1]
        return any(text[:n] in tails for n in range(1, min(len(text), self._longest) + 1))

    def ends_inside(self, text: str) -> bool:
        """Whether the text ends with the beginning of a name."""
        heads = self._ends[0]
        return any(text[-n:] in heads for n in range(1, min(len(text), self._longest) + 1))

    @cached_property
    def _ends(self) -> tuple[set[str], set[str]]:
        """All proper beginnings and all proper ends of the names."""
        heads = {name[:cut] for name in self._control for cut in range(1, len(name))}
        tails = {name[cut:] for name in self._control for cut in range(1, len(name))}
        return heads, tails

    def _end(self, text: str, start: int) -> int:
        """Where the name at `start` ends; 0 if there is none."""
        for length in self._lengths[text[start]]:
            if text[start : start + length] in self._control:
                return start + length
        return 0


def _is_in_word(text: str, start: int, end: int) -> bool:
    neighbours = text[max(0, start - 1) : start] + text[end : end + 1]
    return re.search(r"\w", neighbours) is not None
