"""When the connection of a client that reads slowly is cut, on a clock of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from mlc_llm.serve.server.http_protocol import TimedProtocol, timed
from mlc_llm.serve.server.limits.settings import Limits

WRITE_S = 7.0


class Socket(asyncio.Transport):
    """A transport whose client takes what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.is_cut = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (1, 0), "what waits would be seen too late"

    def abort(self) -> None:
        self.is_cut = True


class Timers:
    """An event loop that has timers and nothing else."""

    def __init__(self) -> None:
        self.set: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, seconds: float, call: Callable[..., None], *given: object) -> Timers:
        if seconds == WRITE_S:  # others are for the head of a request
            self.set.append((call, given))
        return self

    def cancel(self) -> None:
        self.set.clear()

    def go_off(self) -> None:
        (call, given), self.set = self.set[0], []
        call(*given)


def connection() -> tuple[TimedProtocol, Socket, Timers]:
    made, timers = Socket(), Timers()
    config = uvicorn.Config(lambda: None, log_config=None)
    config.load()
    protocol = timed(Limits(write_s=WRITE_S))(
        config, ServerState(), {}, cast(asyncio.AbstractEventLoop, timers)
    )
    protocol.connection_made(made)
    return protocol, made, timers


@pytest.mark.parametrize("left", [1000, 1005])
def test_a_client_that_takes_nothing_is_cut(left: int) -> None:
    protocol, made, timers = connection()
    made.unsent = 1000
    protocol.pause_writing()
    made.unsent = left
    timers.go_off()
    assert made.is_cut and not timers.set


def test_a_client_that_takes_a_little_is_waited_for() -> None:
    protocol, made, timers = connection()
    made.unsent = 1000
    protocol.pause_writing()
    for left in range(999, 990, -1):
        made.unsent = left
        timers.go_off()
        assert not made.is_cut
    timers.go_off()
    assert made.is_cut


def test_a_client_that_has_taken_all_is_not_watched() -> None:
    protocol, made, timers = connection()
    made.unsent = 1000
    protocol.pause_writing()
    assert len(timers.set) == 1
    made.unsent = 0
    protocol.resume_writing()
    assert not timers.set and not made.is_cut
