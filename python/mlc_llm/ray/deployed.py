"""A replica in Ray's hands. Its process loads what an engine needs, and no part of the server: a
replica that comes back does so sooner."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import ray
from ray import serve

from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.scaling import QUEUED_TOKENS, RUNNING
from mlc_llm.ray.sessions import Sessions
from mlc_llm.ray.settings import ModelSettings
from mlc_llm.ray.wire import STATS, Aim, ReplicaStats, WireRequest, WrongReplica
from mlc_llm.serve.kv_events.settings import KVEventsConfig
from mlc_llm.support.garbage import collect_from_now

TOPIC_BYTES = 16
"""Of the random topic of its KV events, by which routers tell them from a stranger's."""

_log = logging.getLogger(__name__)


class Replica(ModelReplica):
    """A `ModelReplica` in Ray's hands."""

    async def __init__(self, settings: ModelSettings) -> None:  # type: ignore[misc]  # Ray waits
        config, host = settings.engine, ray.util.get_node_ip_address()
        if settings.routing == "prefix":
            here = f"tcp://{host}:0"
            topic = secrets.token_hex(TOPIC_BYTES)
            events = KVEventsConfig(endpoint=here, replay_endpoint=here, topic=topic)
            config = replace(config, kv_events=events)
        await asyncio.to_thread(ModelReplica.__init__, self, settings, config)
        try:
            await self.probe()
        except BaseException:
            self.close()
            raise
        self._sessions = Sessions(host, self)
        collect_from_now()

    async def attend(self, aim: Aim, name: str, address: str) -> AsyncIterator[str]:
        """See `Sessions.attend`. Raises `WrongReplica`."""
        _check_aim(aim)
        async for inbox in self._sessions.attend(name, address):
            yield inbox

    async def put_prefill(self, wire: WireRequest) -> list[Any]:
        """The place of a `prefill` in Ray's store of objects. (Alone in a list it stays a place,
        and the ingress never gets the pages.)"""
        return [ray.put(await self.prefill(wire))]

    async def bring(self, aim: Aim, wire: WireRequest, place: list[Any]) -> None:
        """Take over the prompt of `put_prefill`. If it is lost, it is computed here. Raises
        `WrongReplica`."""
        _check_aim(aim)
        try:
            await self.take_in(wire, await place[0])
        except ray.exceptions.RayError as error:
            _log.warning("request %s: its prompt is lost: %s", wire.request_id, error)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray gives them to the autoscaler."""
        running = float(self._sessions.running)
        return {QUEUED_TOKENS: float(self.waiting_tokens), RUNNING: running}

    def record_routing_stats(self) -> dict[str, ReplicaStats]:
        """Ray gives them to routers."""
        return {STATS: self.stats()}

    def __del__(self) -> None:
        if hasattr(self, "_sessions"):
            self._sessions.close()
        if hasattr(self, "_engine"):
            self.close()


def _check_aim(aim: Aim) -> None:
    """Raises `WrongReplica` if Ray has sent the call to another replica."""
    own = str(serve.get_replica_context().replica_id.unique_id)
    if aim.replica != own:
        raise WrongReplica(f"a call for replica {aim.replica} has come to {own}")
