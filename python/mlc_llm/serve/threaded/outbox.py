"""The way out of the engine's thread: a queue of outputs for the stream-back loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlc_llm.errors import MLCError
from mlc_llm.serve.data import RequestStreamOutput

Outputs = list[RequestStreamOutput]


class Outbox:
    """Outputs that wait for the stream-back loop. No size limit: a slow reader stops nobody."""

    def __init__(self) -> None:
        # This queue waits in C. The stream-back loop wakes at every step, while the model computes.
        self._queue: queue.SimpleQueue[Outputs | None] = queue.SimpleQueue()
        self._is_closed = False
        self._reading = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The block alone takes outputs. Raises `MLCError` if another loop does."""
        if not self._reading.acquire(blocking=False):
            raise MLCError("the stream-back loop of this engine runs already")
        try:
            yield
        finally:
            self._reading.release()

    def put(self, outputs: Outputs) -> None:
        """Append. Never waits."""
        if outputs:
            self._queue.put(outputs)

    def close(self) -> None:
        """Mark the end: nothing is put after this call."""
        self._queue.put(None)

    def take(self) -> Outputs | None:
        """Wait for outputs and return all of them; None after the end. For one thread only."""
        found: Outputs = []
        while not self._is_closed and not (found and self._queue.empty()):
            more = self._queue.get()
            self._is_closed = more is None
            found += more or []
        return found or None
