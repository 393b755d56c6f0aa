"""Lines that end between words, for text that comes in pieces."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TextIO

from prompt_toolkit.utils import get_cwidth

from mlc_llm.cli.terminal import Output, harmless

LEAST_WIDTH = 16
"""Columns; on a terminal narrower than this the lines end where the terminal ends them."""


class WordWrap:
    """Turns the spaces at which lines grow too long into line ends.

    A word is held back until it is whole. `width` says how many columns a line may have now;
    a wide character counts two, and a line may end before and after it. Spaces at the start of a
    line are kept, and so is a word that is longer than a line.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._word = ""
        self._gap = ""
        self._column = 0

    def put(self, text: str) -> str:
        """Take a piece; returns what can be shown by now."""
        return "".join(self._put(char) for char in text)

    def flush(self) -> str:
        """What was held back: the last word and the spaces behind it."""
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
        """The word behind the gap, or on a line of its own where it does not fit any more."""
        if not self._word:
            return ""
        shown, size = self._gap + self._word, get_cwidth(self._word)
        self._column += get_cwidth(self._gap)
        # The last column stays free: terminals differ in where the cursor is behind it.
        room = self._width() - 1
        if room >= LEAST_WIDTH and self._column > 0 and self._column + size > room:
            shown = "\n" + self._word
            self._column = 0
        self._column += size
        self._word = self._gap = ""
        return shown


class WrappedOutput(Output):
    """Ends the lines on a terminal between words; a pipe gets the text as it is."""

    def __init__(
        self, stream: TextIO | None = None, width: Callable[[], int] | None = None
    ) -> None:
        super().__init__(stream)
        self._width = width or (lambda: shutil.get_terminal_size().columns)
        self._wrap = WordWrap(_columns)

    def write(self, text: str) -> None:
        """As `Output.write`; on a terminal the last word waits for the next piece."""
        super().write(self._wrap.put(harmless(text)) if self.is_terminal else text)

    def end_line(self) -> None:
        """Show what was held back, and a newline, unless there is one already."""
        super().write(self._wrap.flush())
        self._wrap = WordWrap(_columns)
        super().end_line()


def _columns() -> int:
    return shutil.get_terminal_size().columns
