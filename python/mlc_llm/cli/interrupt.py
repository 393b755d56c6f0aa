"""Ctrl-C as a flag that is read between steps, so that no step stops in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """True once Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Inside, the first Ctrl-C only sets the flag. The second one does what it did before.

    Nothing changes outside the main thread, because signals do not arrive there. Nothing changes
    either if SIGINT is ignored or has no handler in Python.
    """
    flag = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield flag
        return

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if flag.pressed:
            before(signum, frame)
        flag.pressed = True

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
