"""The models of a server: opened when they are asked for, closed when others need their memory.

All of it belongs to the event loop. Opening, closing and planning run on other threads, one at a
time and in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from mlc_llm.errors import MLCError
from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.server.errors import HTTPError, NoModel, not_found, overloaded
from mlc_llm.serve.server.pool.openers import Opener, Plan
from mlc_llm.serve.server.pool.slot import ModelSlot, State

DEFAULT_NAME = "default"
FAILED_S = 10.0
"""A model that could not be opened is not tried again for so long."""
RETRY_S = 5
END_S = 10.0
"""Engines have so long to end at the end of the server."""

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class _NobodyWaits(Exception):
    """All who wanted a model have gone before it was opened."""


class ModelRegistry:
    """Each model has a slot, and at most one open engine. The first model is the default one."""

    def __init__(
        self,
        slots: Sequence[ModelSlot],
        opener: Opener,
        *,
        budget: int | None = None,
        share: int | None = None,
        most_open: int | None = None,
        any_name: bool = False,
        most_waiting: int = 256,
        most_tokens: int = 1 << 18,
    ) -> None:
        """budget: bytes for all open models; None: no limit. share: what a model takes of it
        unless it needs more; None: an equal one. most_open: how many may be open; None: all.
        any_name: an unknown name means the default model. most_waiting: requests that may wait for
        models to be opened. most_tokens: prompt tokens that may wait for a model."""
        self.slots = tuple(slots)
        self._opener, self._budget = opener, budget
        self._most_open = most_open or len(self.slots)
        self._share = share
        if share is None and budget is not None:
            self._share = budget // self._most_open
        self._any_name, self._most_waiting = any_name, most_waiting
        self._most_tokens = most_tokens
        self.has_lost_threads = False
        """An engine was given up whose thread may never end."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, "mlc-open-model")

    @property
    def default(self) -> ModelSlot:
        return self.slots[0]

    @property
    def open_slots(self) -> list[ModelSlot]:
        """Those with an engine, ready or about to be closed."""
        return [one for one in self.slots if one.client is not None]

    @property
    def clients(self) -> list[AsyncClient]:
        return [one.client for one in self.slots if one.client is not None]

    @property
    def places(self) -> int:
        """Answers that the open engines compute at a time."""
        return sum(one.turns.places for one in self.open_slots if one.turns is not None)

    def seconds_for(self, answers: int) -> int:
        """Seconds in which so many answers should end."""
        found = [one.turns.speed.seconds_for(answers, 0) for one in self.slots if one.turns]
        return min(found, default=RETRY_S)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model to be opened."""
        return sum(len(one.waiters) for one in self.slots)

    def find(self, name: str | None) -> ModelSlot:
        """The model of a name in a request. Raises `HTTPError` (404) that lists the names."""
        if name in (None, "", DEFAULT_NAME):
            return self.default
        for slot in self.slots:
            if name in slot.names:
                return slot
        for slot in self.slots:
            if name in slot.adapters:
                return slot
        if self._any_name:
            return self.default
        known = ", ".join(name for slot in self.slots for name in slot.all_names)
        words = f"the model {str(name)[:80]!r} does not exist; there is: {known}"
        raise not_found(words, code="model_not_found", param="model")

    def open_now(self, slot: ModelSlot) -> None:
        """Open a model on this thread, before the event loop runs. Raises what opening raises."""
        plan = self._opener.plan(slot.source, self._budget, self._share)
        slot.opened(self._opener.open(slot.source, plan), plan, self._most_tokens)

    def take_ready(self, slot: ModelSlot) -> bool:
        """`take` for a model that is open. False: it is not."""
        if slot.is_ready and slot.client is not None:
            slot.running += 1
            return True
        return False

    async def take(self, slot: ModelSlot) -> AsyncClient:
        """The open engine of a model, which stays open until `give_back`. It is opened if it is
        not. Raises `HTTPError` if that fails, with the reason."""
        if self.take_ready(slot) and slot.client is not None:
            return slot.client
        if slot.state is State.FAILED and time.monotonic() - slot.failed_at < FAILED_S:
            raise NoModel(slot.names[0], slot.error)
        if self.num_waiting >= self._most_waiting:
            words = f"{self.num_waiting} requests wait for a model to be opened; no more may"
            raise overloaded(words, retry_s=RETRY_S)
        waiter: asyncio.Future[AsyncClient] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        if slot.opening is None:
            slot.opening = asyncio.ensure_future(self._open(slot))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(slot)  # it had come just before
            raise
        finally:
            if waiter in slot.waiters:
                slot.waiters.remove(waiter)
                self._changed.set()

    def give_back(self, slot: ModelSlot) -> None:
        """End what `take` began."""
        slot.running -= 1
        slot.used_at = time.monotonic()
        self._changed.set()

    @contextmanager
    def given_back(self, slot: ModelSlot) -> Iterator[None]:
        """Calls `give_back` at its end."""
        try:
            yield
        finally:
            self.give_back(slot)

    async def close(self, slot: ModelSlot, still: Callable[[], bool] = lambda: True) -> bool:
        """Close a model when its requests have ended. still: whether that is wanted when its turn
        has come. False: it was not open, or that was not wanted any more."""
        async with self._turn:
            if slot.client is None or not still():
                return False
            await self._drain(slot, lambda: True)
            await self._end(slot)
            return True

    def replace(self, slot: ModelSlot) -> None:
        """Give up the engine of a slot, which does not answer any more. The next request opens
        another one."""
        client, slot.client, slot.state = slot.client, None, State.CLOSED
        slot.stalled, slot.plan = "", None
        if client is not None:
            self._changed.set()
            self.has_lost_threads = True
            # It may never end, so nobody waits for it.
            threading.Thread(target=client.terminate, name="mlc-give-up", daemon=True).start()

    def fail_all(self, error: Exception) -> None:
        """End all answers, and all that wait for a model, with an error."""
        for slot in self.slots:
            slot.fail_all(error)
            slot.refuse(error)

    @property
    def is_busy(self) -> bool:
        """A request uses a model, or waits for one."""
        return any(one.running or one.waiters for one in self.slots)

    @property
    def is_stuck(self) -> bool:
        """A thread is at work that cannot be ended."""
        opening = any(one.state is State.OPENING for one in self.slots)
        return bool(self.has_lost_threads or self.stalled or opening)

    @property
    def stalled(self) -> list[ModelSlot]:
        """Models whose engines do not move."""
        return [one for one in self.slots if one.stalled]

    def terminate(self) -> None:
        """End all engines. The event loop runs no more. One that hangs is left behind."""
        threads = [
            threading.Thread(target=client.terminate, name="mlc-end", daemon=True)
            for client in self.clients
        ]
        for thread in threads:
            thread.start()
        latest = time.monotonic() + END_S
        for thread in threads:
            thread.join(max(0.0, latest - time.monotonic()))
            self.has_lost_threads |= thread.is_alive()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _open(self, slot: ModelSlot) -> None:
        """Open a model for those who wait for it. All of them get the engine, or the reason."""
        try:
            async with self._turn:
                if slot.client is None:
                    await self._open_in_turn(slot)
                slot.hand_over()
        except _NobodyWaits:
            _log.info("model %s is not wanted any more", slot.names[0])
        except Exception as error:
            slot.failed(_reason(error))
            _log.warning("model %s cannot be opened: %s", slot.names[0], slot.error)
            if not isinstance(error, (MLCError, MemoryError, OSError)):
                _log.error("the error was", exc_info=error)
        finally:
            slot.opening = None
            if slot.waiters:  # they came while it ended
                slot.opening = asyncio.ensure_future(self._open(slot))

    async def _open_in_turn(self, slot: ModelSlot) -> None:
        if not slot.waiters:
            raise _NobodyWaits
        plan = await self._thread(lambda: self._plan(slot))
        await self._make_room(slot, plan)
        slot.state, started = State.OPENING, time.monotonic()
        client = await self._thread(lambda: self._opener.open(slot.source, plan))
        slot.opened(client, plan, self._most_tokens)
        _log.info("model %s opened in %.1f s", slot.names[0], time.monotonic() - started)

    def _plan(self, slot: ModelSlot) -> Plan:
        return self._opener.plan(slot.source, self._budget, self._share)

    async def _make_room(self, slot: ModelSlot, plan: Plan) -> None:
        """Close models, the least recently used first, until there is room for this one."""
        while not self._has_room(plan):
            ready = [one for one in self.open_slots if one is not slot]
            if not ready:
                words = f"it needs {plan.bytes >> 20} MB of {(self._budget or 0) >> 20} MB"
                raise HTTPError(503, words)
            victim = min(ready, key=lambda one: (one.stalled != "", one.running > 0, one.used_at))
            _log.info("model %s makes room for %s", victim.names[0], slot.names[0])
            await self._drain(victim, lambda: bool(slot.waiters))
            await self._end(victim)

    def _has_room(self, plan: Plan) -> bool:
        opened = self.open_slots
        used = sum(one.plan.bytes for one in opened if one.plan is not None)
        fits = self._budget is None or used + plan.bytes <= self._budget
        return fits and len(opened) < self._most_open

    async def _drain(self, slot: ModelSlot, is_wanted: Callable[[], bool]) -> None:
        """Wait until nobody uses a model. Nobody can take it meanwhile. Raises `_NobodyWaits`."""
        slot.state = State.DRAINING
        try:
            while slot.running:
                self._changed.clear()
                await self._changed.wait()
                if not is_wanted():
                    raise _NobodyWaits
        except BaseException:
            slot.state = State.CLOSED if slot.client is None else State.READY
            slot.hand_over()
            raise

    async def _end(self, slot: ModelSlot) -> None:
        """The engine is ended also if nobody waits for that any more. One that is opened then comes
        behind it, on the same thread. What fails to end is given up, and what is stalled."""
        if slot.stalled:
            self.replace(slot)
            return
        client, slot.client = slot.client, None
        try:
            if client is not None:
                await asyncio.shield(self._thread(client.terminate))
        except Exception:
            self.has_lost_threads = True
            raise
        finally:
            slot.closed()

    async def _thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
