"""Which replica a prompt goes to: where it will have its first token soonest.

The time until then is what waits at a replica, and what the replica has to compute of the prompt.
The second part is small where the beginning of the prompt is computed already. That is known of
the replicas' own events, by the keys of cache blocks, and never guessed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS

USUAL_SPEED = 500.0
"""Prompt tokens a second of a replica that has not measured any."""

ReplicaT = TypeVar("ReplicaT", bound=Hashable)


class PrefixIndex(Generic[ReplicaT]):
    """Which replicas hold which cache blocks. A replica that holds a block holds all before it."""

    def __init__(self) -> None:
        self._holders: dict[int, set[ReplicaT]] = {}
        self._keys: dict[ReplicaT, set[int]] = {}

    def stored(self, replica: ReplicaT, keys: Iterable[int]) -> None:
        """The replica holds these blocks now."""
        own = self._keys.setdefault(replica, set())
        for key in keys:
            own.add(key)
            self._holders.setdefault(key, set()).add(replica)

    def removed(self, replica: ReplicaT, keys: Iterable[int]) -> None:
        """It holds them no more."""
        own = self._keys.get(replica, set())
        for key in keys:
            own.discard(key)
            self._drop(replica, key)

    def cleared(self, replica: ReplicaT) -> None:
        """It holds nothing, or nobody knows what."""
        for key in self._keys.pop(replica, set()):
            self._drop(replica, key)

    def keys_of(self, replica: ReplicaT) -> Collection[int]:
        """What it holds."""
        return self._keys.get(replica, set())

    def levels(self, keys: Sequence[int]) -> list[tuple[int, set[ReplicaT]]]:
        """Numbers of blocks from the first one on, and the replicas that hold so many at least.
        Only where another number of blocks means other replicas; more blocks come later."""
        found: list[tuple[int, set[ReplicaT]]] = []
        for number, key in enumerate(keys, 1):
            holders = self._holders.get(key)
            if not holders:
                break
            if found and len(found[-1][1]) == len(holders):
                found[-1] = (number, holders)
            else:
                found.append((number, holders))
        return found

    def _drop(self, replica: ReplicaT, key: int) -> None:
        holders = self._holders.get(key)
        if holders is not None:
            holders.discard(replica)
            if not holders:
                del self._holders[key]


class Load:
    """What a replica has to do, as far as the router knows."""

    def __init__(self, speed: float = USUAL_SPEED) -> None:
        """speed: prompt tokens a second, as the replica has measured."""
        self.waiting_tokens = 0
        """Prompt tokens that it has still to compute."""
        self.running = 0
        """Requests that have not ended."""
        self.others = 0
        """Those of other ingresses, as the replica has last said."""
        self.measured(speed)

    def add(self, tokens: int, requests: int) -> None:
        """So much has come; below 0: has gone."""
        self.waiting_tokens = max(0, self.waiting_tokens + tokens)
        self.running += requests
        self.wait_s = self.waiting_tokens * self.pace

    def measured(self, speed: float) -> None:
        """The replica has measured another speed."""
        self.pace = 1 / max(speed, 1e-3)
        """Seconds for a token."""
        self.wait_s = self.waiting_tokens * self.pace
        """Seconds until a prompt that comes now is begun."""


class PrefixChoice(Generic[ReplicaT]):
    """Chooses replicas. It belongs to one thread."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.index: PrefixIndex[ReplicaT] = PrefixIndex()
        self.loads: dict[ReplicaT, Load] = {}
        """The replicas that there are."""
        self._chance = chance or random.Random()

    def choose(self, keys: Sequence[int], tokens: int) -> tuple[ReplicaT, int] | None:
        """The replica for a prompt of so many tokens with these blocks, and how many of the tokens
        it has to compute. None: there is no replica.

        If nothing is known of the prompt, it is the better one of two that chance takes.
        """
        loads = self.loads
        levels = self.index.levels(keys)
        if not levels:
            return self._of_two(tokens)
        fastest = min(load.pace for load in loads.values()) if loads else 0.0
        best: tuple[ReplicaT, int] | None = None
        least = math.inf
        for blocks, holders in [*reversed(levels), (0, loads.keys())]:
            uncached = max(tokens - blocks * BLOCK_TOKENS, 1)
            if uncached * fastest >= least:
                break  # even one that has nothing else to do would not be ready before
            there = [one for one in holders if one in loads]
            if there:
                found = self._least(there, uncached)
                seconds = self._seconds(*found)
                if seconds < least:
                    best, least = found, seconds
        return best

    def cached_tokens(self, replica: ReplicaT, keys: Sequence[int]) -> int:
        """How many tokens of the prompt it holds, in whole blocks."""
        held = self.index.keys_of(replica)
        number = 0
        while number < len(keys) and keys[number] in held:
            number += 1
        return number * BLOCK_TOKENS

    def _of_two(self, tokens: int) -> tuple[ReplicaT, int] | None:
        if not self.loads:
            return None
        names = list(self.loads)
        two = self._chance.sample(names, min(2, len(names)))
        return self._least(two, tokens)

    def _least(self, replicas: Iterable[ReplicaT], tokens: int) -> tuple[ReplicaT, int]:
        """The one that will be ready first with so many tokens."""
        loads = self.loads

        def seconds(one: ReplicaT) -> float:
            load = loads[one]
            return load.wait_s + tokens * load.pace

        return min(replicas, key=seconds), tokens

    def _seconds(self, replica: ReplicaT, tokens: int) -> float:
        load = self.loads[replica]
        return load.wait_s + tokens * load.pace
