"""The replicas that there are, what they say, and which of them a request goes to."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Mapping, Sequence

from mlc_llm.ray.prefix_choice import Load, PrefixChoice
from mlc_llm.ray.wire import ReplicaStats, WireRequest
from mlc_llm.serve.kv_events.subscriber import EventSubscriber


class _Told:
    """Changes of the index on their way from the subscriber's thread to the table's."""

    def __init__(self) -> None:
        self.changes: queue.SimpleQueue[Callable[[PrefixChoice[str]], None]] = queue.SimpleQueue()

    def stored(self, name: str, keys: Sequence[int]) -> None:
        self.changes.put(lambda choice: choice.index.stored(name, keys))

    def removed(self, name: str, keys: Sequence[int]) -> None:
        self.changes.put(lambda choice: choice.index.removed(name, keys))

    def cleared(self, name: str) -> None:
        self.changes.put(lambda choice: choice.index.cleared(name))


class ReplicaTable:
    """See `PrefixChoice`. All of it belongs to one thread, but for the subscriber inside."""

    def __init__(self, *, by_prefix: bool = True, chance: random.Random | None = None) -> None:
        """by_prefix: False: the one of two with fewer requests."""
        self._by_prefix = by_prefix
        self._chance = chance or random.Random()
        self._told = _Told()
        self._choice: PrefixChoice[str] = PrefixChoice(self._chance)
        self._subscriber: EventSubscriber | None = None
        self._followed: dict[str, ReplicaStats] = {}
        self._sent: dict[str, tuple[str, int]] = {}
        """By request: the replica, and the prompt tokens that it has to compute."""

    @property
    def names(self) -> list[str]:
        """Of all replicas."""
        return list(self._choice.loads)

    def look_at(self, replicas: Mapping[str, ReplicaStats | None]) -> None:
        """Take in which replicas there are, and what they say (None: nothing yet)."""
        loads = self._choice.loads
        for name in [one for one in loads if one not in replicas]:
            del loads[name]
            if self._followed.pop(name, None) is not None and self._subscriber is not None:
                self._subscriber.leave(name)
        for name, stats in replicas.items():
            load = loads.setdefault(name, Load())
            if stats is not None and self._followed.get(name) != stats:
                load.measured(stats.speed)
                self._follow(name, stats)

    def choose(self, wire: WireRequest) -> str | None:
        """The replica for a request. None: there is none."""
        if not self._by_prefix:
            return self._fewest()
        while not self._told.changes.empty():
            self._told.changes.get()(self._choice)
        found = self._choice.choose(wire.keys, len(wire.token_ids))
        return None if found is None else found[0]

    def sent(self, key: str, name: str, wire: WireRequest) -> None:
        """The request has gone to the replica. key: for `ended`."""
        load = self._choice.loads.get(name)
        if load is not None:
            uncached = len(wire.token_ids) - self._choice.cached_tokens(name, wire.keys)
            self._sent[key] = (name, uncached)
            load.add(uncached, 1)

    def ended(self, key: str) -> None:
        """A request of `sent` has ended, in whatever way."""
        name, uncached = self._sent.pop(key, ("", 0))
        load = self._choice.loads.get(name)
        if load is not None:
            load.add(-uncached, -1)

    def others(self, name: str, requests: int) -> None:
        """The replica has so many requests of somebody else."""
        load = self._choice.loads.get(name)
        if load is not None:
            load.others = requests

    def _fewest(self) -> str | None:
        loads = self._choice.loads
        two = self._chance.sample(list(loads), min(2, len(loads)))
        return min(two, key=lambda name: loads[name].running + loads[name].others, default=None)

    def _follow(self, name: str, stats: ReplicaStats) -> None:
        before = self._followed.get(name)
        self._followed[name] = stats
        if before is None and stats.events is not None and stats.replay is not None:
            if self._subscriber is None:
                self._subscriber = EventSubscriber(self._told)
            self._subscriber.follow(name, stats.events, stats.replay, stats.topic)
