"""HTTP/1.1 connections that end if the head of a request does not come in time, or if their client
takes nothing for too long. They see a client go whatever it has sent before."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from mlc_llm.serve.server.limits.settings import Limits

AHEAD_BYTES = 1 << 16
"""What a client has sent behind its request is read up to here before the answer has ended."""


class TimedProtocol(H11Protocol):
    """uvicorn itself waits for ever for the rest of a head that has begun, and for a client that
    does not read what was written before its connection was closed."""

    header_s = 20.0
    """Seconds from the start of a connection, or of a request on it, to the end of its head."""
    write_s = 60.0
    """A client has so long to take something of what waits to be sent."""
    most = 1024
    """Connections at a time; one more is closed at once."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # Writing is paused while anything waits (0 would pause TLS for ever). So nothing is added
        # meanwhile, and what waits gets less only if the client takes something.
        self.transport.set_write_buffer_limits(high=1, low=0)
        self._wait_for_head()
        if len(self.connections) > self.most:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._read_on()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:  # the next request of the connection begins
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """A body may break behind the answer to its request: then nothing can be said."""
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _should_upgrade(self) -> bool:
        """There is no other protocol. Java's client asks for HTTP/2 with every request; uvicorn
        would log each time that a package is missing."""
        return False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_unsent()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def _read_on(self) -> None:
        """uvicorn stops reading behind a request that a client has sent ahead, or behind a line
        break. So it would not see the end of the connection before that of the answer."""
        is_ahead = self.flow.read_paused and not self.cycle.more_body
        if is_ahead and len(self.conn.trailing_data[0]) < AHEAD_BYTES:
            self.flow.resume_reading()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_unsent(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.write_s, self._look, unsent)

    def _stop_watching(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _look(self, unsent: int) -> None:
        """unsent: bytes that waited when the time began."""
        if self.transport.get_write_buffer_size() < unsent:
            self._watch_unsent()
        else:
            self.transport.abort()  # `close` would wait until the client has taken all

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def timed(limits: Limits) -> type[TimedProtocol]:
    """The protocol with the times and the number of connections of these limits."""
    values = {
        "header_s": limits.header_s,
        "write_s": limits.write_s,
        "most": limits.connections,
    }
    return type("TimedProtocol", (TimedProtocol,), values)
