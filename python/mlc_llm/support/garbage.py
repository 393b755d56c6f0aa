"""When Python looks for garbage in a command: not before the model is open, and in a server, as far
as that can be, while nobody waits for an answer.

Nearly everything that a start makes is used until the end, and to look for garbage in it takes a
sixth of the time of a start.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RARELY = 1000
"""Python looks at all objects after so many looks at younger ones; of itself, after 10."""
REST_S = 1.0
"""So long nothing runs before all objects are looked at."""


class NoCollection:
    """A context manager around a whole command: until `collect_from_now` or its end, Python looks
    for no garbage."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def collect_from_now() -> None:
    """Let Python look for garbage again, but not in what has been made so far."""
    gc.freeze()
    gc.enable()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within it, Python looks at all objects a hundred times less often. With hundreds of requests
    each such look takes a quarter of a second, in which nobody gets an answer."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, RARELY)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


class IdleCollection:
    """Looks for garbage in all objects when work is done and nothing new has come for a while."""

    def __init__(
        self,
        collect: Callable[[], object] = gc.collect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._collect = clock, collect
        self._busy_at: float | None = None
        """When something ran last, since the last collection."""

    def look(self, *, is_busy: bool) -> None:
        """To be called several times a second."""
        if is_busy:
            self._busy_at = self._clock()
        elif self._busy_at is not None and self._clock() >= self._busy_at + REST_S:
            self._busy_at = None
            self._collect()
