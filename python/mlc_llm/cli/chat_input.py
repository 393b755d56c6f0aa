"""Reads the messages of a chat: from a terminal with editing and history, or as plain lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from mlc_llm.cli.terminal import decoded, note
from mlc_llm.errors import CacheError
from mlc_llm.support.files import cache_dir

PROMPT = ">>> "
HISTORY_NAME = "chat_history"


def is_interactive() -> bool:
    """Whether standard input and output are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def plain_lines(stream: BinaryIO) -> Iterator[str]:
    """Each line is a message; empty ones are skipped. Raises `UserError` for bytes not in UTF-8."""
    for number, line in enumerate(stream, start=1):
        text = decoded(line, f"line {number} of standard input").strip()
        if text:
            yield text


def typed_messages(
    history: History | None = None, *, source: Input | None = None, screen: Output | None = None
) -> Iterator[str]:
    """Messages typed at a terminal, until Ctrl-D. Ctrl-C empties the line.

    Enter sends. Alt-Enter (or Escape, then Enter) starts a new line. Tests give `source` and
    `screen` instead of a terminal.
    """
    session: PromptSession[str] = PromptSession(
        PROMPT,
        history=saved_history() if history is None else history,
        multiline=True,
        prompt_continuation=lambda width, number, soft: " " * width,
        key_bindings=_keys(),
        input=source,
        output=screen,
    )
    while True:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            note("(/exit or Ctrl-D leaves)")
            continue
        except EOFError:
            return
        if text.strip():
            yield text.strip()


def saved_history() -> History:
    """The history file in the cache folder. Only its owner can read it.

    If it cannot be written, the history ends with the chat, and a note says so.
    """
    try:
        path = cache_dir() / HISTORY_NAME
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except (OSError, CacheError) as error:
        note(f"(the chat history is not saved: {error})")
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
