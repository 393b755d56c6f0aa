"""Standard streams that the caller has closed, or whose disk is full."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from mlc_llm.errors import MLCError


def occupy_closed_streams() -> None:
    """Open /dev/null for each of standard input, output and error that is closed.

    Else the next file that is opened would get its number, and the text that is written to it.
    `sys.stdout` stays None, for `check_output`.
    """
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            number = os.open(os.devnull, os.O_RDWR)  # it takes the lowest free number
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def check_output() -> None:
    """Raises MLCError if there is no standard output, before the work is done for nothing."""
    if sys.stdout is None:
        raise MLCError("standard output is closed; send it to a file, a pipe or /dev/null")


def say(text: str) -> None:
    """Write a line to standard error. An error of writing is ignored: nobody could read it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        forget(sys.stderr)


def flush_output() -> None:
    """Flush standard output. Raises OSError if it cannot be written."""
    if sys.stdout is not None:
        sys.stdout.flush()


def forget(stream: TextIO | None) -> None:
    """Send what is still written to a standard stream to /dev/null. Else Python would report an
    error at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        if stream is not None:
            os.dup2(devnull, stream.fileno())
    except (OSError, ValueError):  # a replaced stream has no descriptor
        pass
    finally:
        os.close(devnull)


def leave_at_once(code: int) -> None:
    """End the process without waiting for its threads, one of which hangs. What was logged is
    written before."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass
    os._exit(code)
