"""Delays Ctrl-C while work runs that must not stop in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # the C part of `signal`: it sets a handler ten times faster

PATIENCE_S = 5.0
"""A second interrupt goes through if the first has waited longer than this: the work hangs."""


class HeldInterrupts:
    """A context that delays the handler of SIGINT. At its end the handler is called, if there was
    an interrupt.

    It takes about two microseconds. It does nothing outside the main thread (where Python calls no
    handler), if SIGINT is ignored or ends the process, and inside another `HeldInterrupts`, which
    goes on holding. A handler that is set inside the context stays. Each object is used once.
    """

    __slots__ = ("_before", "_frame", "_since", "_waits")

    def __init__(self) -> None:
        self._before: Callable[[int, FrameType | None], object] | None = None
        self._waits = False
        self._since = 0.0
        self._frame: FrameType | None = None

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            before = _signal.getsignal(_signal.SIGINT)
            if callable(before) and not isinstance(_owner(before), HeldInterrupts):
                self._before = before
                _signal.signal(_signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            if _owner(_signal.getsignal(_signal.SIGINT)) is self:
                _signal.signal(_signal.SIGINT, self._before)
            self.let_through()

    def let_through(self) -> None:
        """Call the handler now if an interrupt waits. Call this where the work is consistent."""
        if self._waits and self._before is not None:
            self._waits, frame, self._frame = False, self._frame, None
            self._before(_signal.SIGINT, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._waits:
            self._since, self._frame, self._waits = now, frame, True
        elif now - self._since > PATIENCE_S:
            self.let_through()


def _owner(handler: object) -> object:
    """The object of a handler that is a method; None for another handler."""
    return getattr(handler, "__self__", None)
