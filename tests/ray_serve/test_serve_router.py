"""The request router, in the loop of Ray that asks it for replicas."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the ray extra is not installed")

from ray.serve._private.request_router.common import PendingRequest

from mlc_llm.ray.serve_router import ServeRouter
from mlc_llm.ray.wire import Aim

MOST = 1000
"""Times that Ray may ask before the test gives up: it would ask for ever."""


class Asked(ServeRouter):  # type: ignore[misc]  # Ray has no types here
    """A router of one replica, which counts how often it is asked."""

    def __init__(self, replica: str) -> None:
        there = SimpleNamespace(replica_id=SimpleNamespace(unique_id=replica))
        self._replicas, self._replicas_list = {replica: there}, [there]
        self.initial_backoff_s, self.backoff_multiplier, self.max_backoff_s = 0.01, 2.0, 0.1
        self.num_routing_tasks_in_backoff = 0
        self.num_routing_tasks_in_backoff_gauge = SimpleNamespace(set=lambda _: None)
        self.times = 0
        self.initialize_state()

    async def choose_replicas(self, *args: Any, **named: Any) -> Any:
        self.times += 1
        assert self.times < MOST, "Ray asks without a pause"
        return await super().choose_replicas(*args, **named)


def test_other_work_goes_on_while_a_replica_is_not_there() -> None:
    async def asked() -> int:
        router = Asked("other")
        pending = PendingRequest([Aim("gone")], {}, metadata=None)  # type: ignore[arg-type]
        chosen = router._choose_replicas_with_backoff(pending)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(chosen), 0.3)
        return router.times

    assert 2 <= asyncio.run(asked()) < 20


def test_a_call_goes_to_its_replica() -> None:
    async def chosen() -> Any:
        router = Asked("this")
        pending = PendingRequest([Aim("this")], {}, metadata=None)  # type: ignore[arg-type]
        return await anext(router._choose_replicas_with_backoff(pending))

    (found,) = asyncio.run(chosen())
    assert found.replica_id.unique_id == "this"
