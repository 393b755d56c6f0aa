"""HTTP/1.1 connections that end if the head of a request does not come in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """uvicorn itself waits for ever for the rest of a head that has begun."""

    header_s = 20.0
    """Seconds from the start of a connection, or of a request on it, to the end of its head."""
    most = 1024
    """Connections at a time; one more is closed at once."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._wait_for_head()
        if len(self.connections) > self.most:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:  # the next request of the connection begins
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def timed(header_s: float, most: int) -> type[TimedProtocol]:
    """The protocol with these limits."""
    return type("TimedProtocol", (TimedProtocol,), {"header_s": header_s, "most": most})
