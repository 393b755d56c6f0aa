"""Finds the end of a JSON value in a text that comes in pieces."""

from __future__ import annotations

_OPENING, _CLOSING = "{[", "}]"


class JsonScan:
    """Follows an object or an array to its last bracket, or a text to its last quote. It does not
    check what is inside."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False

    def end_in(self, text: str) -> int | None:
        """How many characters of the next piece belong to the value; None if all do, and more are
        to come. The value begins with a bracket or a quote."""
        for i, letter in enumerate(text):
            if self._in_string:
                self._in_string = self._is_escaped or letter != '"'
                self._is_escaped = letter == "\\" and not self._is_escaped
                if not self._in_string and not self._depth:
                    return i + 1
            elif letter == '"':
                self._in_string = True
            elif letter in _OPENING:
                self._depth += 1
            elif letter in _CLOSING:
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None
