"""Ray Serve's request router that sends a prompt where its beginning is computed already.

Replicas say in their routing stats where they publish their KV events, and how fast they compute
prompts. Without stats or events, the choice is the better one of two.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from mlc_llm.ray.prefix_choice import Load, PrefixChoice
from mlc_llm.ray.wire import STATS, ReplicaStats, WireRequest
from mlc_llm.serve.kv_events.subscriber import EventSubscriber

_log = logging.getLogger(__name__)


class _Told:
    """Changes of the index on their way from the subscriber's thread to the router's."""

    def __init__(self) -> None:
        self.changes: queue.SimpleQueue[Callable[[PrefixChoice[str]], None]] = queue.SimpleQueue()

    def stored(self, name: str, keys: Sequence[int]) -> None:
        self.changes.put(lambda choice: choice.index.stored(name, keys))

    def removed(self, name: str, keys: Sequence[int]) -> None:
        self.changes.put(lambda choice: choice.index.removed(name, keys))

    def cleared(self, name: str) -> None:
        self.changes.put(lambda choice: choice.index.cleared(name))


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """See `PrefixChoice`. All of it runs on the event loop of the router but the subscriber."""

    def initialize_state(self, **_: object) -> None:
        """Called by Ray once."""
        self._told = _Told()
        self._choice: PrefixChoice[str] = PrefixChoice()
        self._subscriber = EventSubscriber(self._told)
        self._followed: dict[str, ReplicaStats] = {}
        self._dead: set[str] = set()
        """Replicas that have died, while Ray's controller still names them."""
        self._sent: dict[str, tuple[str, int]] = {}
        """By request: the replica, and the prompt tokens that it has to compute."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter`. With an empty list Ray asks again a little later."""
        dead = self._dead
        candidate_replicas = [
            one for one in candidate_replicas if _name(one.replica_id) not in dead
        ]
        if not candidate_replicas:
            return []
        by_name = {_name(one.replica_id): one for one in candidate_replicas}
        self._look_at(by_name)
        wire = _wire(pending_request)
        keys, tokens = ((), 0) if wire is None else (wire.keys, len(wire.token_ids))
        found = self._choice.choose(keys, tokens)
        if found is None:
            return [candidate_replicas]
        first = by_name[found[0]]
        others = [one for one in candidate_replicas if one is not first]
        return [[first], others] if others else [[first]]

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """See `RequestRouter`. Ray forgets it here too, and takes it back with the next list of the
        controller, which may not know of the death for seconds: whatever is sent there is lost."""
        self._dead.add(_name(replica_id))
        super().on_replica_actor_died(replica_id)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        """See `RequestRouter`."""
        wire, name = _wire(pending_request), _name(replica_id)
        load = self._choice.loads.get(name)
        if wire is None or load is None:
            return
        uncached = len(wire.token_ids) - self._choice.cached_tokens(name, wire.keys)
        self._sent[pending_request.metadata.internal_request_id] = (name, uncached)
        load.add(uncached, 1)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """See `RequestRouter`."""
        name, uncached = self._sent.pop(internal_request_id, ("", 0))
        load = self._choice.loads.get(name)
        if load is not None:
            load.add(-uncached, -1)

    def _look_at(self, replicas: dict[str, RunningReplica]) -> None:
        """Take in which replicas there are, what they say, and what their caches hold."""
        loads = self._choice.loads
        for name in [one for one in loads if one not in replicas]:
            del loads[name]
            if self._followed.pop(name, None) is not None:
                self._subscriber.leave(name)
        for name, replica in replicas.items():
            load = loads.setdefault(name, Load())
            stats = (replica.routing_stats or {}).get(STATS)
            if isinstance(stats, ReplicaStats) and self._followed.get(name) != stats:
                load.measured(stats.speed)
                self._follow(name, stats)
        while not self._told.changes.empty():
            self._told.changes.get()(self._choice)

    def _follow(self, name: str, stats: ReplicaStats) -> None:
        before = self._followed.get(name)
        self._followed[name] = stats
        if before is None and stats.events is not None and stats.replay is not None:
            self._subscriber.follow(name, stats.events, stats.replay, stats.topic)


def _name(replica_id: ReplicaID) -> str:
    return str(replica_id.unique_id)


def _wire(pending: PendingRequest | None) -> WireRequest | None:
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, WireRequest) else None
