"""Ray Serve's request router for calls of our own: it tells of the replicas that there are, and
sends a call to the replica that it is for. Only prompts that are computed apart are calls; other
requests go through the sessions that a call begins.
"""

from __future__ import annotations

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from mlc_llm.ray.replica_lists import tell
from mlc_llm.ray.replica_table import ReplicaTable
from mlc_llm.ray.wire import STATS, Aim, ReplicaStats, WireRequest


class ServeRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """All of it runs on the event loop of Ray's router."""

    def initialize_state(self, *, by_prefix: bool = True) -> None:
        """Called by Ray once. by_prefix: see `ReplicaTable`."""
        self._table = ReplicaTable(by_prefix=by_prefix)
        self._dead: set[str] = set()
        """Replicas that have died, while Ray's controller still names them."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter`. With an empty list Ray asks again a little later: without the word
        of the context it would ask at once, again and again, and let nothing else run."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_name = {_name(one.replica_id): one for one in candidate_replicas}
        by_name = {name: one for name, one in by_name.items() if name not in self._dead}
        first = pending_request.args[0] if pending_request and pending_request.args else None
        if isinstance(first, Aim):
            aimed = by_name.get(first.replica)
            return [[aimed]] if aimed is not None else []
        if isinstance(first, WireRequest):
            self._table.look_at({name: _stats(one) for name, one in by_name.items()})
            best = self._table.choose(first)
            if best is not None:
                others = [one for name, one in by_name.items() if name != best]
                return [[by_name[best]], others] if others else [[by_name[best]]]
        return [list(by_name.values())] if by_name else []

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See `RequestRouter`."""
        super().update_replicas(replicas)
        place = self._deployment_id.app_name, self._deployment_id.name
        tell(place, {_name(one.replica_id): _stats(one) for one in replicas})

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """See `RequestRouter`. Ray forgets it here too, and takes it back with the next list of the
        controller, which may not know of the death for seconds: whatever is sent there is lost."""
        self._dead.add(_name(replica_id))
        super().on_replica_actor_died(replica_id)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        """See `RequestRouter`."""
        first = pending_request.args[0] if pending_request.args else None
        if isinstance(first, WireRequest):
            key = pending_request.metadata.internal_request_id
            self._table.sent(key, _name(replica_id), first)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """See `RequestRouter`."""
        self._table.ended(internal_request_id)


def _name(replica_id: ReplicaID) -> str:
    return str(replica_id.unique_id)


def _stats(replica: RunningReplica) -> ReplicaStats | None:
    found = (replica.routing_stats or {}).get(STATS)
    return found if isinstance(found, ReplicaStats) else None
