"""How many replicas there should be: by the prompt tokens that wait, not by the number of requests.

A hundred short questions are less work than one long document, so requests say little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

QUEUED_TOKENS = "queued_prompt_tokens"
RUNNING = "running_requests"
"""The names of the numbers that replicas record. Ray's own number of requests is that of sessions:
it does not see requests."""


class Seen(Protocol):
    """What is read of Ray's `AutoscalingContext`."""

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...

    @property
    def target_num_replicas(self) -> int: ...

    @property
    def capacity_adjusted_min_replicas(self) -> int: ...

    @property
    def capacity_adjusted_max_replicas(self) -> int: ...


class QueuedTokens:
    """A policy of Ray Serve's autoscaler."""

    def __init__(self, queued_tokens: int, answers: int) -> None:
        """queued_tokens: that may wait for each replica. answers: that each computes at a time."""
        self._queued_tokens, self._answers = queued_tokens, answers

    def __call__(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        """The number of replicas. It grows with what waits. It shrinks only as far as the answers
        that run fit into the rest."""
        metrics = seen.aggregated_metrics or {}
        waiting, running = (
            sum(metrics.get(name, {}).values()) for name in (QUEUED_TOKENS, RUNNING)
        )
        wanted = math.ceil(waiting / self._queued_tokens)
        busy = math.ceil(running / self._answers)
        most, least = seen.capacity_adjusted_max_replicas, seen.capacity_adjusted_min_replicas
        if wanted < seen.target_num_replicas:
            wanted = min(max(wanted, busy), seen.target_num_replicas)
        return max(least, min(most, wanted)), {}
