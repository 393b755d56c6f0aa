"""Finds stop strings in the bytes of tokens."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mlc_llm.errors import InvalidField


class TokenBytes(Protocol):
    """The part of a tokenizer that gives the bytes of a token."""

    def token_bytes(self, token_id: int) -> bytes: ...


class StopStrings:
    """The stop strings of a request and their tables. It never changes, so sequences share it.

    It takes 5 bytes for each byte of the strings. With the limits of `GenerationConfig.stop_strs`
    (64 strings of 1,024 characters) that is 0.3 MB for ASCII and at most 1.3 MB.
    """

    def __init__(self, stop_strs: Sequence[str]) -> None:
        """Raises `InvalidField` for a stop string that is empty or not Unicode."""
        patterns = [_Pattern(_utf8(text)) for text in dict.fromkeys(stop_strs)]
        self.num_bytes = sum(pattern.num_bytes for pattern in patterns)
        """Size of all texts and tables."""
        self.starting: dict[int, list[_Pattern]] = {}
        """The stop strings by their first byte."""
        for pattern in patterns:
            self.starting.setdefault(pattern.text[0], []).append(pattern)


class StopStrHandler:
    """Holds tokens back while they may be a part of a stop string.

    The method is that of Knuth, Morris and Pratt, on bytes. The stop string that is complete first
    counts; if several are complete at once, the longest.
    """

    def __init__(self, stop_strs: Sequence[str] | StopStrings, tokenizer: TokenBytes) -> None:
        """Raises `InvalidField` for a stop string that is empty or not Unicode."""
        stops = stop_strs if isinstance(stop_strs, StopStrings) else StopStrings(stop_strs)
        self._starting = stops.starting
        self._matched: dict[_Pattern, int] = {}
        """Stop string -> how many of its first bytes the text ends with, if not 0."""
        self._token_bytes = tokenizer.token_bytes
        self._held: deque[tuple[int, bytes]] = deque()
        self._start = 0  # position of the first held byte
        self._end = 0  # position after the last byte
        self.stop_triggered = False
        self.found: str | None = None
        """The stop string that ended the text."""
        self.cut_bytes = 0
        """Bytes of UTF-8 to cut from the end of the text of the released tokens, because the stop
        string begins inside the last token. Counted in the decoded text, in which bytes that are
        no character are U+FFFD."""

    def put(self, token_id: int) -> list[int]:
        """Add a token. Returns the tokens that can be shown now.

        If a stop string is complete, these are the tokens before it. If it begins inside a token,
        that token is the last one returned, and `cut_bytes` says how much of it to cut. No token
        may be put after that.
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
        """End the text. Returns the tokens that were still held back."""
        rest = [token_id for token_id, _ in self._held]
        self._held.clear()
        self._start = self._end
        return rest

    def _scan(self, data: bytes) -> int | None:
        """Add bytes. Returns the position where a complete stop string begins; None if none is."""
        for byte in data:
            self._end += 1
            if self._matched or byte in self._starting:
                stop = self._feed(byte)
                if stop:
                    self.found = stop.decode()
                    return self._end - len(stop)
        return None

    def _feed(self, byte: int) -> bytes:
        """Add a byte. Returns the longest stop string that is complete, or nothing."""
        before, longest = self._matched, b""
        after = {pattern: pattern.step(matched, byte) for pattern, matched in before.items()}
        for pattern in self._starting.get(byte, ()):
            after.setdefault(pattern, 1)
        self._matched = {pattern: matched for pattern, matched in after.items() if matched}
        for pattern, matched in self._matched.items():
            if len(longest) < matched == len(pattern.text):
                longest = pattern.text
        return longest

    def _release(self, position: int) -> list[int]:
        """Take the held tokens that end at `position` or before it."""
        released = []
        while self._held and self._start + len(self._held[0][1]) <= position:
            token_id, data = self._held.popleft()
            self._start += len(data)
            released.append(token_id)
        return released

    def _stop(self, position: int) -> list[int]:
        self.stop_triggered = True
        released = self._release(position)
        if self._held and self._start < position:
            token_id, data = self._held[0]
            rest = data[position - self._start :]
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
        """Size of text and table."""
        return len(self.text) + len(self._failure) * self._failure.itemsize

    def step(self, matched: int, byte: int) -> int:
        """How many of its first bytes a text ends with after `byte`; before it, `matched`."""
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
