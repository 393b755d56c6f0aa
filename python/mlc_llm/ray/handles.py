"""The replicas of a model behind the handles of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from mlc_llm.ray.fleet import Fleet
from mlc_llm.ray.remote_engine import Asker, Outputs, ReplicaDied, ReplicaLost, Sender
from mlc_llm.ray.replica_lists import Replicas, watch
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import Aim, ReplicaFacts, WireRequest

FACTS_S = 600.0
METRICS_S = 3.0
"""For each replica, all at the same time."""

_log = logging.getLogger(__name__)


class HandleReplicas:
    """See `Replicas`. With `prefill`, long prompts are computed behind that handle while the
    replicas of the answers are busy. It belongs to the event loop that makes it."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        settings: ModelSettings,
        prefill: DeploymentHandle[Any] | None = None,
    ) -> None:
        self._handle, self._prefill = handle, prefill
        self._rules, self._replicas = settings.prefill, settings.replicas
        self._open = 0
        self._loop = asyncio.get_running_loop()
        by_prefix = settings.routing == "prefix"
        self._fleet = Fleet(ray.util.get_node_ip_address(), self._attend, by_prefix=by_prefix)
        watch((handle.app_name, handle.deployment_name), self._told)

    @property
    def send(self) -> Sender:
        return self._send

    @property
    def ask(self) -> Asker:
        return self._ask

    def facts(self) -> ReplicaFacts:
        """Waits until a replica is ready. Ray may route on the loop, so it is asked there."""
        found = asyncio.run_coroutine_threadsafe(self._facts(), self._loop).result(FACTS_S)
        assert isinstance(found, ReplicaFacts)
        return found

    async def _facts(self) -> object:
        return await self._handle.facts.remote()

    def ending(self) -> None:
        """See `Fleet`."""
        self._fleet.ending()

    def _told(self, replicas: Replicas) -> None:
        self._loop.call_soon_threadsafe(self._fleet.update, replicas)

    async def _attend(self, replica: str, session: str, address: str) -> AsyncGenerator[str, None]:
        """See `Attend`."""
        call = self._handle.options(stream=True).attend
        response = call.remote(Aim(replica), session, address)
        is_over = False
        try:
            async for inbox in response:
                yield inbox
            is_over = True
        except ray.exceptions.ActorDiedError as error:
            is_over = True
            raise ReplicaDied("the replica has died") from error
        except ray.exceptions.RayError as error:
            raise ReplicaLost(f"the replica is gone: {type(error).__name__}") from error
        finally:
            if not is_over:
                response.cancel()

    async def _send(self, wire: WireRequest) -> AsyncIterator[Outputs]:
        before: Callable[[str], Awaitable[None]] | None = None
        if self._is_apart(wire) and (place := await self._prefilled(wire)) is not None:
            before = partial(self._bring, wire, place)
        self._open += 1
        try:
            async for outputs in self._fleet.send(wire, before):
                yield outputs
        finally:
            self._open -= 1

    def _is_apart(self, wire: WireRequest) -> bool:
        """Its prompt is long, and the replicas have answers to compute."""
        rules = self._rules
        if rules is None or self._prefill is None or len(wire.token_ids) < rules.min_tokens:
            return False
        is_text = wire.prompt_logprobs is None and not wire.is_embedding
        return is_text and self._open >= rules.busy_answers * self._replicas

    async def _prefilled(self, wire: WireRequest) -> list[Any] | None:
        """Where the pages of its prompt lie. None: the replica of the answer computes them."""
        assert self._prefill is not None
        place: list[Any] | None = await self._called(wire, self._prefill.put_prefill.remote(wire))
        return place

    async def _bring(self, wire: WireRequest, place: list[Any], replica: str) -> None:
        """Let the replica take over the prompt from there. If it cannot, it computes it."""
        await self._called(wire, self._handle.bring.remote(Aim(replica), wire, place))

    async def _called(self, wire: WireRequest, response: Any) -> Any:
        """The result of a call; None, with a warning, if it failed. Cancelling it ends the call."""
        is_over = False
        try:
            result = await response
            is_over = True
            return result
        except ray.exceptions.RayError as error:
            is_over = True
            name = type(error).__name__
            _log.warning("request %s: its prompt is not computed apart: %s", wire.request_id, name)
            return None
        finally:
            if not is_over:
                response.cancel()

    async def _ask(self, wire: WireRequest) -> list[Outputs]:
        return await self._fleet.ask(wire, METRICS_S)
