"""Text in and out: streaming to a terminal or a pipe, and prompts read as strict UTF-8."""

from __future__ import annotations

import io
import sys
import threading
from typing import BinaryIO, TextIO

from mlc_llm.cli.streams import say
from mlc_llm.errors import UserError

WAIT_S = 3.0
"""A user is told what a command waits for after this many seconds."""

_HARMLESS = {"\n", "\t"}


class Output:
    """Standard output that shows each piece at once.

    A terminal gets no control characters but newline and tab: a model must not be able to move
    the cursor or change the title. A pipe gets the text as it is.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")
        self._at_line_start = True

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads it."""
        return self._stream.isatty()

    def write(self, text: str) -> None:
        """Write and flush. Raises BrokenPipeError when the reader has gone."""
        if not text:
            return
        self._stream.write(harmless(text) if self.is_terminal else text)
        self._stream.flush()
        self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """A newline, unless there is one already."""
        if not self._at_line_start:
            self.write("\n")


def harmless(text: str) -> str:
    """Control characters replaced by U+FFFD, so that they do nothing and still can be seen."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    code = ord(char)
    return (code < 0x20 or 0x7F <= code < 0xA0) and char not in _HARMLESS


def note(text: str) -> None:
    """A remark to the user, beside the answer."""
    say(text)


def decoded(raw: bytes, source: str) -> str:
    """`raw` as text. Raises `UserError` naming the first byte that is not UTF-8."""
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
    """All of standard input; after a while a note says what is waited for, unless `quiet`.

    Raises `UserError` when it is closed, longer than `limit` bytes, or not UTF-8.
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
    """All of `stream`. Raises `UserError` when it is longer than `limit` bytes or not UTF-8."""
    raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise UserError(f"standard input is longer than {limit} bytes; no prompt can be that long")
    return decoded(raw, "standard input")


def checked_argument(text: str) -> str:
    """A command-line argument. Raises `UserError` if its bytes were not text in this locale."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("the prompt argument is not valid UTF-8 text") from None
    return text
