"""Ends the program at once on Ctrl-C, without an exception.

SIGTERM and SIGHUP end it as in any program. Only while there is something to undo, that is done
before.

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


_ends: list[int] = []
"""The signals that a command also undoes things for."""


class undone:
    """A context: if the program ends inside it, `undo` is called. It must not wait for a lock."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        _undo[self] = self._undo
        _replace(_signal.SIG_DFL, _end)

    def __exit__(self, *error: object) -> None:
        _undo.pop(self, None)
        if not _undo:
            _replace(_end, _signal.SIG_DFL)


def leave_on_interrupt() -> None:
    """From now on Ctrl-C ends the program at once: one line on standard error, exit code 130.

    If SIGINT is ignored (`nohup`, background jobs of a shell), it stays ignored. Call it on the
    main thread.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)
    _ends[:] = [_signal.SIGTERM, *([_signal.SIGHUP] if hasattr(_signal, "SIGHUP") else [])]


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
    _undo_all()
    say_interrupted()
    os._exit(INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> None:
    """Undo, then end as if there had been no handler."""
    _undo_all()
    _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _undo_all() -> None:
    for undo in reversed(list(_undo.values())):
        try:
            undo()
        except Exception:  # the other functions must be called too
            continue


def _replace(before: object, after: object) -> None:
    """Another handler for the signals that have this one. Other threads than the main one must not
    do that."""
    for number in _ends:
        if _signal.getsignal(number) == before:
            try:
                _signal.signal(number, after)  # type: ignore[arg-type]
            except ValueError:
                return
