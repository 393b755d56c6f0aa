"""Stop strings, found in the bytes of the tokens."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mlc_llm.errors import InvalidField


class TokenBytes(Protocol):
    """What is needed of a tokenizer to look inside tokens."""

    def token_bytes(self, token_id: int) -> bytes: ...


class StopStrings:
    """The stop strings of a request and their tables. Nothing in it changes: branches share it.

    It takes 5 bytes for each byte of the strings, so the limits of `GenerationConfig.stop_strs` (64
    of 1,024 characters) bound it: 0.3 MB of ASCII, 1.3 MB at most.
    """

    def __init__(self, stop_strs: Sequence[str]) -> None:
        """Raises `InvalidField` for a stop string that is empty or not Unicode."""
        patterns = [_Pattern(_utf8(text)) for text in dict.fromkeys(stop_strs)]
        self.num_bytes = sum(pattern.num_bytes for pattern in patterns)
        """Of the texts and tables."""
        self.starting: dict[int, list[_Pattern]] = {}
        """By first byte."""
        for pattern in patterns:
            self.starting.setdefault(pattern.text[0], []).append(pattern)


class StopStrHandler:
    """Holds tokens back while they may belong to a stop string (Knuth, Morris, Pratt; by bytes).

    The stop string that is complete first counts; of several complete at once, the longest.
    """

    def __init__(self, stop_strs: Sequence[str] | StopStrings, tokenizer: TokenBytes) -> None:
        """Raises `InvalidField` for a stop string that is empty or not Unicode."""
        stops = stop_strs if isinstance(stop_strs, StopStrings) else StopStrings(stop_strs)
        self._starting = stops.starting
        self._matched: dict[_Pattern, int] = {}
        """How many bytes of a stop string the text ends with, where that is not 0."""
        self._token_bytes = tokenizer.token_bytes
        self._held: deque[tuple[int, bytes]] = deque()
        self._start = 0  # place of the first held byte
        self._end = 0  # place after the last byte
        self.stop_triggered = False
        self.cut_bytes = 0
        """Bytes of UTF-8 to leave off the end of the text of the released tokens, because the
        stop string begins inside the last of them. Counted in the text as decoded, where bytes
        that are no character are U+FFFD."""

    def put(self, token_id: int) -> list[int]:
        """The tokens that are certain to be shown now.

        When a stop string is complete these are the tokens before it; one in which it begins is
        the last of them, with `cut_bytes`. Nothing may be put after that.
        """
        if self.stop_triggered:
            raise RuntimeError("StopStrHandler.put was called after a stop string was found")
        data = self._token_bytes(token_id)
        self._held.append((token_id, data))
        stop = self._scan(data)
        if stop is None:
            longest = max(self._matched.values(), default=0)
            return self._release(self._end - longest)
        return self._stop(stop)

    def finish(self) -> list[int]:
        """The tokens still held back: no stop string can follow any more."""
        rest = [token_id for token_id, _ in self._held]
        self._held.clear()
        self._start = self._end
        return rest

    def _scan(self, data: bytes) -> int | None:
        """Feed bytes; the place where a complete stop string begins."""
        for byte in data:
            self._end += 1
            if self._matched or byte in self._starting:
                length = self._feed(byte)
                if length:
                    return self._end - length
        return None

    def _feed(self, byte: int) -> int:
        """Bytes of the longest stop string that this byte completes; 0 where there is none."""
        before, longest = self._matched, 0
        after = {pattern: pattern.step(matched, byte) for pattern, matched in before.items()}
        for pattern in self._starting.get(byte, ()):
            after.setdefault(pattern, 1)
        self._matched = {pattern: matched for pattern, matched in after.items() if matched}
        for pattern, matched in self._matched.items():
            if matched == len(pattern.text):
                longest = max(longest, matched)
        return longest

    def _release(self, place: int) -> list[int]:
        """The held tokens that end at `place` or before it."""
        released = []
        while self._held and self._start + len(self._held[0][1]) <= place:
            token_id, data = self._held.popleft()
            self._start += len(data)
            released.append(token_id)
        return released

    def _stop(self, place: int) -> list[int]:
        self.stop_triggered = True
        released = self._release(place)
        if self._held and self._start < place:
            token_id, data = self._held[0]
            rest = data[place - self._start :]
            self.cut_bytes = len(rest.decode(errors="replace").encode())
            released.append(token_id)
        self._held.clear()
        return released


class _Pattern:
    """One stop string and its table."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._failure = _failure_table(text)

    @property
    def num_bytes(self) -> int:
        """Of text and table."""
        return len(self.text) + len(self._failure) * self._failure.itemsize

    def step(self, matched: int, byte: int) -> int:
        """How much of it a text ends with behind one more byte, if it was so much before."""
        while matched and self.text[matched] != byte:
            matched = self._failure[matched - 1]
        return matched + (self.text[matched] == byte)


def _failure_table(text: bytes) -> array[int]:
    """For each prefix, the length of its longest proper prefix that is also its end."""
    table = array("I", bytes(4 * len(text)))
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = table[length - 1]
        if text[i] == text[length]:
            length += 1
        table[i] = length
    return table


def _utf8(text: str) -> bytes:
    if not text:
        raise InvalidField("stop", text, "a stop string needs at least one character")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidField("stop", text, "a stop string should be valid Unicode") from None
