"""Replicas in this process with real sockets, and a fleet before them. No Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from replica_harness import settings

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.fleet import Fleet
from mlc_llm.ray.messages import ToReplica
from mlc_llm.ray.remote_engine import ReplicaDied
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.sessions import Sessions
from mlc_llm.ray.wire import WireRequest
from mlc_llm.serve.data import RequestStreamOutput

HOST = "127.0.0.1"
PROMPT = tuple(b"every word comes back once, in order")


class Node:
    """A replica, which can be killed and listened to."""

    def __init__(self, model: str = "mock://echo") -> None:
        given = replace(settings(), model=model)
        self.replica = ModelReplica(given, given.engine)
        self.sessions = Sessions(HOST, self.replica)
        self.came: list[ToReplica] = []
        """Messages from the fleet."""
        self.begun = 0
        """Sessions."""
        self.killed: asyncio.Event | None = None
        taking = self.sessions._take

        def take(message: ToReplica) -> None:
            self.came.append(message)
            taking(message)

        self.sessions._take = take  # type: ignore[method-assign]

    async def attend(self, session: str, address: str) -> AsyncGenerator[str, None]:
        self.begun += 1
        killed = self.killed = self.killed or asyncio.Event()
        own = self.sessions.attend(session, address)
        try:
            yield await anext(own)  # type: ignore[call-overload]
            waits = [asyncio.ensure_future(one) for one in (anext(own, None), killed.wait())]  # type: ignore[arg-type, call-overload]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            if killed.is_set():
                raise ReplicaDied("it was killed")
        finally:
            await own.aclose()  # type: ignore[attr-defined]

    def close(self) -> None:
        self.sessions.close()
        self.replica.close()

    @property
    def is_idle(self) -> bool:
        return self.replica._load.core.is_idle and not self.sessions.running


class Nodes:
    """Nodes by name, and a fleet before them."""

    def __init__(self, **nodes: Node) -> None:
        self.all = nodes

    async def _attend(self, replica: str, session: str, address: str) -> AsyncGenerator[str, None]:
        async for inbox in self.all[replica].attend(session, address):
            yield inbox

    def fleet(self, **more: Any) -> Fleet:
        for one in self.all.values():
            one.came.clear()
            one.begun, one.killed = 0, None
        fleet = Fleet(HOST, self._attend, **more)
        fleet.update(dict.fromkeys(self.all))
        return fleet


def wire_for(
    one: Node, name: str, prompt: tuple[int, ...] = PROMPT, n: int = 1, **more: object
) -> WireRequest:
    config = GenerationConfig(n=n, **more)  # type: ignore[arg-type]
    text = config.merged_over(one.replica._load.bundle.defaults).asjson()
    return WireRequest(name, prompt, text, one.replica._load.fingerprint)


async def asked(fleet: Fleet, wire: WireRequest) -> tuple[list[int], list[str]]:
    """The tokens of the first sequence, and how the request ended."""
    tokens, ends = list[int](), list[str]()
    async for outputs in fleet.send(wire):
        for one in outputs:
            assert one.request_id == wire.request_id
            ends += [] if one.request_final_usage_json_str is None else ["usage"]
            ends += [reason for reason in one.group_finish_reason if reason is not None]
            tokens += tokens_of(one)
    return tokens, ends


def tokens_of(one: RequestStreamOutput) -> list[int]:
    return one.group_delta_token_ids[0] if one.group_delta_token_ids else []


async def until(condition: Callable[[], bool]) -> None:
    """The test has a limit of its own."""
    while not condition():
        await asyncio.sleep(0.002)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
