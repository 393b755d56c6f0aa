"""Replicas of the echo engine in this process, and an ingress's client before them. No Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.client import ReplicaClient
from mlc_llm.ray.raw_engine import Outputs
from mlc_llm.ray.remote_engine import Asker, ReplicaLost, Sender
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import ReplicaFacts, WireRequest
from mlc_llm.serve.async_reader import AsyncReader, begin
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.openai.calls import Part

LONGEST_S = 30.0


class Local:
    """Replicas that can be killed: each request goes to the next one."""

    def __init__(self, replicas: list[ModelReplica]) -> None:
        self.all = replicas
        self.kill_after: list[int | None] = []
        """For each attempt to come: the number of outputs behind which its replica dies."""
        self.sent: list[WireRequest] = []

    @property
    def send(self) -> Sender:
        return self._send

    @property
    def ask(self) -> Asker:
        return self._ask

    async def _ask(self, wire: WireRequest) -> list[Outputs]:
        return [outputs for one in self.all async for outputs in one.generate(wire)]

    def facts(self) -> ReplicaFacts:
        return self.all[0].facts()

    async def _send(self, wire: WireRequest) -> AsyncIterator[Outputs]:
        replica = self.all[len(self.sent) % len(self.all)]
        self.sent.append(wire)
        left = self.kill_after.pop(0) if self.kill_after else None
        stream = replica.generate(wire)
        try:
            async for outputs in stream:
                for output in outputs:
                    if left == 0:
                        raise ReplicaLost("it was killed")
                    left = None if left is None else left - 1
                    yield [output]
        finally:
            await stream.aclose()  # type: ignore[attr-defined]


def settings(**more: Any) -> ModelSettings:
    return ModelSettings(name="echo", model="mock://echo", device="cpu", **more)


def replica() -> ModelReplica:
    one = settings()
    return ModelReplica(one, one.engine)


def run(work: Callable[[], Awaitable[None]]) -> None:
    """On a loop of its own, with a limit."""

    async def limited() -> None:
        await asyncio.wait_for(work(), LONGEST_S)

    asyncio.run(limited())


class Ingress:
    """A client before replicas."""

    def __init__(self, local: Local, **more: Any) -> None:
        self.local = local
        self.client = ReplicaClient(local, settings(**more), asyncio.get_running_loop())
        self.asked = 0

    async def begin(self, prompt: list[int], **config: Any) -> AsyncReader:
        self.asked += 1
        name = f"r{self.asked}"
        given = GenerationConfig(**config)

        def make() -> Any:
            return self.client._engine.create_request(name, [TokenData(prompt)], given)

        return await begin(self.client, [Part(name, given.n, make)])

    async def ask(self, prompt: list[int], **config: Any) -> tuple[list[str], list[Any]]:
        """The texts of each choice, and the usages and errors in the order in which they came."""
        reader = await self.begin(prompt, **config)
        return await collected(reader, config.get("n", 1))


async def collected(reader: AsyncReader, n: int = 1) -> tuple[list[str], list[Any]]:
    texts, ends = [""] * n, list[Any]()
    async for _, chunk in reader:
        for piece in chunk.pieces:
            if piece.finish_reason != "error":  # then the text is that of the error
                texts[piece.choice] += piece.text
            if piece.finish_reason not in (None, "error"):
                ends.append(piece.finish_reason)
        if chunk.error is not None:
            ends.append(chunk.error.message)
        if chunk.usage_json is not None:
            ends.append(json.loads(chunk.usage_json)["completion_tokens"])
    return texts, ends
