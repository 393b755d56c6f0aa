"""Ctrl-C held back while something is done that must not be left half done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # what is behind `signal`, which takes ten times as long to set a handler

PATIENCE_S = 5.0
"""An interrupt that comes so long after one that still waits goes through: the work is stuck."""


class HeldInterrupts:
    """Within, the handler of SIGINT is not called; at the end it is, if it was wanted.

    Costs about two microseconds. Does nothing outside the main thread, where no handler is ever
    called; where SIGINT is ignored or ends the process; and within another one, which goes on
    holding. A handler that is set within stays. Each object is used once.
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
        """Call the handler if an interrupt waits: nothing is half done here."""
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
    """The object whose method a handler is."""
    return getattr(handler, "__self__", None)
