"""Ends the program at once on Ctrl-C, without an exception.

An exception that a signal raises inside an import leaves modules half made, and in some places of
Python it is lost. So while a program has given no answer yet, it ends at once. Before that it only
undoes what it changed outside the process.

A command imports this file first, because before that Ctrl-C raises an exception. So it imports
only what Python has loaded anyway: no `signal`, `typing` or `contextlib`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C stopped, as shells count it."""

_LINE = b"mlc_llm: stopped by Ctrl-C\n"

_undo: dict[object, Callable[[], None]] = {}


class undone:
    """A context: if the program ends inside it, `undo` is called. It must not wait for a lock."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        _undo[self] = self._undo

    def __exit__(self, *error: object) -> None:
        _undo.pop(self, None)


def leave_on_interrupt() -> None:
    """From now on Ctrl-C ends the program at once: one line on standard error, exit code 130.

    If SIGINT is ignored (`nohup`, background jobs of a shell), it stays ignored. Call it on the
    main thread.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on: the program has finished its work."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def say_interrupted() -> None:
    """Write the line on standard error."""
    try:
        # The terminal has written "^C" at the cursor, so the line begins on a new one.
        os.write(2, b"\n" + _LINE if os.isatty(2) else _LINE)
    except OSError:
        return  # standard error is closed


def _leave(number: int, frame: FrameType | None) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for undo in reversed(list(_undo.values())):
        try:
            undo()
        except Exception:  # the other functions must be called too
            continue
    say_interrupted()
    os._exit(INTERRUPTED)
