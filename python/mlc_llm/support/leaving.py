"""Ending the whole program in the middle of anything, without an exception.

An exception that a signal raises at a random place of an import leaves modules half made, and is
lost where nobody can raise. So a program that owes nobody anything yet ends at once instead, and
only what lies outside the process is put in order.

This is the first thing that a command imports, and Ctrl-C is not in hand before it is there. So it
needs nothing that Python has not loaded by then: no `signal`, `typing` or `contextlib`.
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
    """If the program leaves within the block, `undo` is called. It must not wait for any lock."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        _undo[self] = self._undo

    def __exit__(self, *error: object) -> None:
        _undo.pop(self, None)


def leave_on_interrupt() -> None:
    """From now on Ctrl-C ends the program at once: one line on standard error, exit code 130.

    Where SIGINT is ignored (`nohup`, background jobs of a shell) it stays so. Main thread only.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def ignore_interrupts() -> None:
    """All is done and said; a late Ctrl-C changes nothing any more."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def say_interrupted() -> None:
    """The line on standard error."""
    try:
        # A terminal has written "^C" where the cursor was.
        os.write(2, b"\n" + _LINE if os.isatty(2) else _LINE)
    except OSError:
        return  # nobody reads it


def _leave(number: int, frame: FrameType | None) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for undo in reversed(list(_undo.values())):
        try:
            undo()
        except Exception:  # what cannot be undone stays
            continue
    say_interrupted()
    os._exit(INTERRUPTED)
