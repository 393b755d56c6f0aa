"""Replicas by the prompt tokens that wait."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mlc_llm.ray.scaling import QUEUED_TOKENS, RUNNING, QueuedTokens


@dataclass
class Numbers:
    waiting: dict[str, float]
    running: float
    target_num_replicas: int
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 8
    aggregated_metrics: dict[str, dict[str, float]] | None = field(init=False)

    def __post_init__(self) -> None:
        self.aggregated_metrics = None
        if self.waiting or self.running:
            self.aggregated_metrics = {QUEUED_TOKENS: self.waiting, RUNNING: {"a": self.running}}


@pytest.mark.parametrize(
    ("waiting", "requests", "now", "wanted"),
    [
        ({}, 0, 1, 1),
        ({}, 0, 5, 1),
        ({"a": 100}, 100, 1, 1),  # many requests, little work
        ({"a": 4001}, 1, 1, 5),  # one request, much work
        ({"a": 3000, "b": 2500}, 2, 2, 6),
        ({"a": 1e9}, 2, 2, 8),
        ({}, 9, 5, 3),  # answers that run keep three replicas
        ({}, 99, 5, 5),  # they never add any
    ],
)
def test_the_number_of_replicas(
    waiting: dict[str, float], requests: float, now: int, wanted: int
) -> None:
    policy = QueuedTokens(queued_tokens=1000, answers=4)
    assert policy(Numbers(waiting, requests, now)) == (wanted, {})
