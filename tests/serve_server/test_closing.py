"""Models whose closing is not waited for, or fails: the next request opens them again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from threaded_harness import PATIENCE_SECONDS

from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.server.pool.openers import Plan
from mlc_llm.serve.server.pool.registry import ModelRegistry
from mlc_llm.serve.server.pool.slot import ModelSlot, State


class Client:
    """An engine that ends when `gate` is open."""

    engine_config, adapters = EngineConfig(), ()

    def __init__(self, log: list[str]) -> None:
        self.gate, self.log = threading.Event(), log
        self.error: Exception | None = None

    def terminate(self) -> None:
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self.log.append("ended")


class Opener:
    """Notes what is opened."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
        return Plan(EngineConfig(), 100)

    def open(self, model: str | None, plan: Plan) -> AsyncClient:
        self.log.append(f"opened {model}")
        return cast(AsyncClient, Client(self.log))


class Pool:
    """A registry of two models, of which there is room for one."""

    def __init__(self) -> None:
        self.opener = Opener()
        self.a, self.b = (ModelSlot((name,), name) for name in "ab")
        self.models = ModelRegistry([self.a, self.b], self.opener, budget=100)
        self.models.open_now(self.a)
        self.client: Any = self.a.client

    async def closing(self) -> asyncio.Task[bool]:
        """It is closed, and waits for the engine's end."""
        task = asyncio.ensure_future(self.models.close(self.a))
        while self.a.client is not None:
            await asyncio.sleep(0)
        assert self.a.state is State.DRAINING
        return task


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))


@pytest.mark.parametrize("name", ["a", "b"])
def test_nobody_waits_for_the_end(name: str) -> None:
    async def work() -> None:
        pool = Pool()
        task = await pool.closing()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert pool.a.state is State.CLOSED and pool.a.plan is None
        taking = asyncio.ensure_future(pool.models.take(pool.a if name == "a" else pool.b))
        await asyncio.sleep(0.01)
        assert pool.opener.log == ["opened a"]
        pool.client.gate.set()
        await taking
        assert pool.opener.log == ["opened a", "ended", f"opened {name}"]
        assert not pool.models.has_lost_threads

    run(work())


def test_an_end_that_waits_for_the_thread_is_not_lost() -> None:
    async def work() -> None:
        pool, before = Pool(), threading.Event()
        pool.client.gate.set()
        pool.models._threads.submit(before.wait, PATIENCE_SECONDS)
        task = await pool.closing()
        task.cancel()
        await asyncio.wait({task})
        before.set()
        await pool.models.take(pool.b)
        assert pool.opener.log == ["opened a", "ended", "opened b"]

    run(work())


def test_an_engine_that_cannot_be_ended_is_given_up() -> None:
    async def work() -> None:
        pool = Pool()
        pool.client.error = RuntimeError("a bug")
        pool.client.gate.set()
        with pytest.raises(RuntimeError, match="a bug"):
            await pool.models.close(pool.a)
        assert pool.a.state is State.CLOSED and pool.models.is_stuck
        await pool.models.take(pool.a)
        assert pool.a.is_ready

    run(work())
