"""Breaks lines between words, for text that comes in pieces."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TextIO

from prompt_toolkit.utils import get_cwidth

from mlc_llm.cli.terminal import Output, harmless

LEAST_WIDTH = 16
"""Columns. On a narrower terminal, the lines are not broken here."""


class WordWrap:
    """Turns a space into a line end where a line would become too long.

    A word waits until it is whole. `width` gives the number of columns of a line at this moment.
    A wide character has two columns, and a line may end before and after it. Spaces at the start
    of a line are kept. A word that is longer than a line is not broken.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._word = ""
        self._gap = ""
        self._column = 0

    def put(self, text: str) -> str:
        """Add a piece. Returns the text that can be shown."""
        return "".join(self._put(char) for char in text)

    def flush(self) -> str:
        """The text that still waits: the last word and the spaces after it."""
        shown = self._place() + self._gap
        self._column += get_cwidth(self._gap)
        self._gap = ""
        return shown

    def _put(self, char: str) -> str:
        if char == "\n":
            shown = self._place() + "\n"
            self._gap, self._column = "", 0
            return shown
        if char in (" ", "\t"):
            shown = self._place()
            self._gap += char.expandtabs(4)
            return shown
        if get_cwidth(char) > 1:
            shown = self._place()
            self._word = char
            return shown + self._place()
        self._word += char
        return ""

    def _place(self) -> str:
        """The word after the gap, or on a new line if it does not fit."""
        if not self._word:
            return ""
        shown, size = self._gap + self._word, get_cwidth(self._word)
        self._column += get_cwidth(self._gap)
        # The last column stays free: terminals differ in the place of the cursor after it.
        room = self._width() - 1
        if room >= LEAST_WIDTH and self._column > 0 and self._column + size > room:
            shown = "\n" + self._word
            self._column = 0
        self._column += size
        self._word = self._gap = ""
        return shown


class WrappedOutput(Output):
    """Breaks the lines on a terminal between words. A pipe gets the text as it is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._wrap = WordWrap(_columns)

    def write(self, text: str) -> None:
        """Like `Output.write`. On a terminal the last word waits for the next piece."""
        super().write(self._wrap.put(harmless(text)) if self.is_terminal else text)

    def end_line(self) -> None:
        """Write the text that still waits, and a newline, unless it ends with one."""
        super().write(self._wrap.flush())
        self._wrap = WordWrap(_columns)
        super().end_line()


def _columns() -> int:
    return shutil.get_terminal_size().columns
