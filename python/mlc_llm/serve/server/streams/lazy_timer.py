"""A timer for what happens often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls a function when something has lasted for so long, and again after as long.

    To begin anew costs an assignment: the timer of the event loop is set only when it goes off. A
    stream begins anew with each token, in the time of the model.
    """

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        """There must be a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._seconds, self._call = seconds, call
        self._since: float | None = None
        self._handle = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        """It lasts from now on."""
        self._since = self._loop.time()

    def cancel(self) -> None:
        """Nothing is called any more."""
        self._handle.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        left = self._seconds if self._since is None else self._since + self._seconds - now
        if left <= 0:
            self._since, left = now, self._seconds
            self._call()
        self._handle = self._loop.call_later(left, self._look)
