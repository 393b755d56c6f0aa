"""Events of streams whose events have names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from mlc_llm.serve.openai.chunks import Chunk


class Event(NamedTuple):
    """One event."""

    name: str
    data: str
    """JSON."""


class EventSource(Protocol):
    """Makes the events of one call."""

    @property
    def ping(self) -> Event | None:
        """A sign of life; None: the API has no event for it."""
        ...

    def begin(self) -> Iterator[Event]:
        """What is known before the first chunk."""
        ...

    def of(self, part: int, chunk: Chunk) -> Iterator[Event]:
        """The events of a chunk of the engine that has not failed."""
        ...

    def failed(self, status: int, message: str) -> Iterator[Event]:
        """What ends a stream that is not whole. status: of HTTP."""
        ...
