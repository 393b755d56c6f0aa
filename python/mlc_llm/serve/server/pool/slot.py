"""One model of a server: what it is called, and what has become of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import Enum

from mlc_llm.errors import MLCError
from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.server.errors import NoModel
from mlc_llm.serve.server.limits.turns import Turns
from mlc_llm.serve.server.pool.openers import Plan
from mlc_llm.serve.server.streams.reader import ServedReader


class State(str, Enum):
    """What a model does."""

    CLOSED = "closed"
    """A request for it opens it."""
    OPENING = "opening"
    READY = "ready"
    DRAINING = "draining"
    """It is closed as soon as its requests have ended."""
    FAILED = "failed"
    """It could not be opened."""


class ModelSlot:
    """A model and its engine, if it is open. It belongs to the event loop."""

    def __init__(self, names: tuple[str, ...], source: str | None) -> None:
        """names: in requests, the first one in answers that name none. source: see `open_model`."""
        self.names, self.source = names, source
        self.configured: tuple[str, ...] = ()
        """LoRA adapters that it is opened with."""
        self.client: AsyncClient | None = None
        self.plan: Plan | None = None
        self.state = State.CLOSED
        self.error = ""
        """Why it could not be opened."""
        self.failed_at = self.used_at = 0.0
        self.keep_s: float | None = None
        """It stays open for so many seconds without a request; None: for good."""
        self.running = 0
        """Requests that hold the engine."""
        self.waiters: list[asyncio.Future[AsyncClient]] = []
        """Requests that wait for it."""
        self.opening: asyncio.Task[None] | None = None
        self.turns: Turns | None = None
        """Who may use the engine next."""
        self.readers: set[ServedReader] = set()
        """Of the answers that have not ended."""
        self.stalled = ""
        """Why its engine serves nobody; empty if it does."""

    @property
    def adapters(self) -> Sequence[str]:
        """Names of its LoRA adapters, which are names in requests as well."""
        try:
            return self.configured if self.client is None else self.client.adapters
        except MLCError:  # an engine that has died
            return self.configured

    @property
    def all_names(self) -> tuple[str, ...]:
        """Its own, and those of its adapters."""
        return (*self.names, *(one for one in self.adapters if one not in self.names))

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    def idle_left_s(self, now: float) -> float | None:
        """Seconds after which it is closed if nobody asks for it; None: it stays. now: of the
        monotonic clock."""
        if self.keep_s is None:
            return None
        idle_s = 0.0 if self.running or self.waiters else now - self.used_at
        return max(0.0, self.keep_s - idle_s)

    def is_over(self, now: float) -> bool:
        """It has been idle for as long as it may."""
        is_idle = self.is_ready and not self.running and not self.waiters
        return is_idle and self.idle_left_s(now) == 0

    def opened(self, client: AsyncClient, plan: Plan, most_tokens: int) -> None:
        """most_tokens: prompt tokens that may wait for it."""
        config = client.engine_config
        places, step = config.max_num_sequence or 1, config.prefill_chunk_size or 1
        self.turns = Turns(places, step, most_tokens)
        self.client, self.plan, self.state, self.error = client, plan, State.READY, ""
        self.stalled = ""
        self.used_at = time.monotonic()

    def hand_over(self) -> None:
        """Give the engine to all who wait for it."""
        if self.client is None:
            return
        waiters, self.waiters = self.waiters, []
        for one in waiters:
            if not one.done():
                self.running += 1
                one.set_result(self.client)

    def failed(self, reason: str) -> None:
        """All who wait get the reason."""
        self.state, self.error, self.failed_at = State.FAILED, reason, time.monotonic()
        self.refuse(NoModel(self.names[0], reason))

    def refuse(self, error: Exception) -> None:
        """All who wait get an error."""
        waiters, self.waiters = self.waiters, []
        for one in waiters:
            if not one.done():
                one.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """End all its answers with an error."""
        for reader in list(self.readers):
            reader.fail(error)

    def closed(self) -> None:
        self.plan, self.state = None, State.CLOSED
