"""Text in and out: streams to a terminal or a pipe, and prompts in strict UTF-8."""

from __future__ import annotations

import io
import sys
import threading
from typing import BinaryIO, TextIO

from mlc_llm.cli.streams import say
from mlc_llm.errors import UserError

WAIT_S = 3.0
"""After this many seconds, a note tells the user what the command waits for."""

_HARMLESS = {"\n", "\t"}


class Output:
    """Standard output that shows each piece at once.

    Of control characters, a terminal gets only newline and tab: a model must not move the cursor
    or change the title. A pipe gets the text as it is.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")
        self._at_line_start = True

    @property
    def is_terminal(self) -> bool:
        """Whether the output is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> None:
        """Write and flush. Raises BrokenPipeError if the reader has ended."""
        if not text:
            return
        self._stream.write(harmless(text) if self.is_terminal else text)
        self._stream.flush()
        self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Write a newline, unless the text ends with one."""
        if not self._at_line_start:
            self.write("\n")


def harmless(text: str) -> str:
    """The text with U+FFFD for each control character, so that it does nothing but is seen."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    code = ord(char)
    return (code < 0x20 or 0x7F <= code < 0xA0) and char not in _HARMLESS


def note(text: str) -> None:
    """A message to the user on standard error, apart from the answer."""
    say(text)


def decoded(raw: bytes, source: str) -> str:
    """`raw` as text. Raises `UserError` that names the first byte that is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}; "
            "convert it to UTF-8 first"
        ) from None


def is_piped() -> bool:
    """Whether standard input comes from a program or a file and not from a terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_input(limit: int, *, quiet: bool = False) -> str:
    """All of standard input. After a few seconds a note says what it waits for, unless `quiet`.

    Raises `UserError` if it is closed, longer than `limit` bytes, or not UTF-8.
    """
    if sys.stdin is None:
        raise UserError("standard input is closed; give the prompt as an argument")
    words = "(reading standard input to its end; '< /dev/null' if there is nothing to read)"
    timer = threading.Timer(WAIT_S, lambda: note(words))
    timer.daemon = True
    if not quiet and is_piped():
        timer.start()
    try:
        return read_all(sys.stdin.buffer, limit)
    finally:
        timer.cancel()


def read_all(stream: BinaryIO, limit: int) -> str:
    """All of `stream`. Raises `UserError` if it is longer than `limit` bytes or not UTF-8."""
    raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise UserError(f"standard input is longer than {limit} bytes; no prompt can be that long")
    return decoded(raw, "standard input")


def checked_argument(text: str) -> str:
    """The argument itself. Raises `UserError` if its bytes are not text in this locale."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("the prompt argument is not valid UTF-8 text") from None
    return text
