"""Standard streams that the caller has closed, or whose disk is full."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from mlc_llm.errors import MLCError


def occupy_closed_streams() -> None:
    """Put nothing where standard input, output or error is closed.

    Else the next file that is opened would take the number, and get what is written there.
    `sys.stdout` stays None, for `check_output`.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is taken
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def check_output() -> None:
    """Raises MLCError where there is no standard output: better now than after the work."""
    if sys.stdout is None:
        raise MLCError("standard output is closed; send it to a file, a pipe or /dev/null")


def say(text: str) -> None:
    """A line on standard error, if it can be written: there is no other place to complain."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        forget(sys.stderr)


def flush_output() -> None:
    """Raises OSError for what cannot be written."""
    if sys.stdout is not None:
        sys.stdout.flush()


def forget(stream: TextIO | None) -> None:
    """Let nothing more be written to a standard stream, at exit least of all: Python would
    complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        if stream is not None:
            os.dup2(devnull, stream.fileno())
    except (OSError, ValueError):  # a replaced stream without a descriptor has nothing to forget
        pass
    finally:
        os.close(devnull)
