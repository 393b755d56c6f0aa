"""Who is next if several tenants wait, and when a refused client should come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.fair_queue import MAX_PRIORITY, PRIORITY_S, FairQueue
from mlc_llm.serve.server.limits.speed import LONGEST_RETRY_S, Speed
from mlc_llm.serve.server.limits.tenants import Tenant
from mlc_llm.serve.server.limits.turns import Turn, Turns

FLOOD, CALM, HEAVY = (Tenant(name.encode()) for name in ("flood", "calm", "heavy"))
DOUBLE = Tenant(b"double", weight=2)


def drain(queue: FairQueue[str], count: int, cost: float = 10.0) -> list[str]:
    found = []
    for _ in range(count):
        item = queue.take(cost)
        assert item is not None
        found.append(item)
    return found


def test_one_tenant_is_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(5):
        queue.put(CALM, str(i), arrival=float(i), priority=0)
    assert drain(queue, 5) == list("01234")
    assert queue.take(1.0) is None and queue.first() is None


def test_a_flood_does_not_delay_another_tenant() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(100):
        queue.put(FLOOD, f"f{i}", arrival=0.0, priority=0)
    drain(queue, 50)
    queue.put(CALM, "c", arrival=1.0, priority=0)
    assert "c" in drain(queue, 2)


def test_nobody_saves_up_a_share() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(200):
        queue.put(FLOOD, f"f{i}", arrival=0.0, priority=0)
    drain(queue, 100)
    for i in range(50):
        queue.put(CALM, f"c{i}", arrival=1.0, priority=0)
    kinds = Counter(item[0] for item in drain(queue, 20))
    assert 8 <= kinds["c"] <= 12


def test_weights_and_costs_share_by_tokens() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(100):
        queue.put(CALM, f"c{i}", arrival=0.0, priority=0)
        queue.put(DOUBLE, f"d{i}", arrival=0.0, priority=0)
    kinds = Counter(item[0] for item in drain(queue, 60))
    assert abs(kinds["d"] - 40) <= 1

    queue = FairQueue()
    for i in range(100):
        queue.put(CALM, f"c{i}", arrival=0.0, priority=0)
        queue.put(HEAVY, f"h{i}", arrival=0.0, priority=0)
    kinds = Counter()
    for _ in range(44):
        first = queue.first()
        assert first is not None
        queue.take(100.0 if first[0] == "h" else 10.0)
        kinds[first[0]] += 1
    assert kinds["h"] == 4 and kinds["c"] == 40


def test_what_an_answer_really_cost_is_charged_later() -> None:
    queue: FairQueue[str] = FairQueue()
    for name, tenant in (("c", CALM), ("h", HEAVY)):
        for i in range(10):
            queue.put(tenant, f"{name}{i}", arrival=0.0, priority=0)
    drain(queue, 2)
    queue.charge(HEAVY, 35.0)
    assert [one[0] for one in drain(queue, 4)] == ["c", "c", "c", "c"]


def test_a_priority_moves_a_request_within_its_tenant() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put(CALM, "usual", arrival=0.0, priority=0)
    queue.put(CALM, "urgent", arrival=5.0, priority=-1)
    queue.put(CALM, "later", arrival=1.0, priority=MAX_PRIORITY)
    queue.put(CALM, "late but not for ever", arrival=MAX_PRIORITY * PRIORITY_S + 2, priority=0)
    assert drain(queue, 4) == ["urgent", "usual", "later", "late but not for ever"]


def test_a_priority_gets_nobody_ahead_of_another_tenant() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(20):
        queue.put(FLOOD, f"f{i}", arrival=0.0, priority=-MAX_PRIORITY)
        queue.put(CALM, f"c{i}", arrival=0.0, priority=MAX_PRIORITY)
    assert Counter(item[0] for item in drain(queue, 10)) == {"f": 5, "c": 5}


def test_one_that_is_removed_is_never_taken() -> None:
    queue: FairQueue[str] = FairQueue()
    items = [f"item {i}" for i in range(6)]
    for i, item in enumerate(items):
        queue.put(CALM, item, arrival=float(-i), priority=0)
    assert queue.remove(CALM, items[2]) and not queue.remove(CALM, items[2])
    assert len(queue) == 5
    assert drain(queue, 5) == [items[i] for i in (5, 4, 3, 1, 0)]


def test_the_speed_counts_busy_time_only() -> None:
    speed = Speed()
    assert speed.seconds_for(100, 100) == 1  # nothing is known
    now = 0.0
    for _ in range(20):
        speed.began(now)
        speed.ended(now + 2.0, answers=1, prompt_tokens=100)
        now += 1000.0  # a long pause
    assert speed.seconds_for(5, 0) == 10
    assert speed.seconds_for(0, 1000) == 20
    assert speed.seconds_for(1, 1000) == 20
    assert speed.seconds_for(10_000, 0) == LONGEST_RETRY_S


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def ask(turns: Turns, tokens: int, answers: int = 1, tenant: Tenant = CALM) -> Turn:
    return turns.ask(tenant, answers, tokens, arrival=0.0, priority=0)


def test_the_engine_gets_no_more_answers_than_it_computes() -> None:
    async def work() -> None:
        turns = Turns(4, 512, 10_000)
        inside = [ask(turns, 10) for _ in range(6)]
        assert [one.came.done() for one in inside] == [True] * 4 + [False] * 2
        assert turns.num_waiting == 2 and turns.waiting_tokens == 20
        turns.end(inside[0], answer_tokens=5)
        turns.end(inside[0], answer_tokens=5)
        assert inside[4].came.done() and not inside[5].came.done()
        many = ask(turns, 10, answers=9)  # more than there are: it is alone then
        turns.end(inside[5])
        for one in (*inside[1:4], inside[4]):
            assert not many.came.done()
            turns.end(one)
        assert many.came.done()
        turns.end(many)
        assert turns.num_waiting == turns.waiting_tokens == 0

    run(work)


def test_the_engine_gets_prompts_for_some_steps_only() -> None:
    async def work() -> None:
        turns = Turns(100, 500, 1 << 20)
        large = [ask(turns, 900) for _ in range(3)]
        assert [one.came.done() for one in large] == [True, False, False]
        turns.started(large[0])
        turns.started(large[0])
        assert large[1].came.done() and not large[2].came.done()
        turns.end(large[1])  # before it has started
        assert large[2].came.done()
        small = [ask(turns, 10) for _ in range(20)]
        assert sum(one.came.done() for one in small) == 10

    run(work)


def test_news_of_a_turn_that_is_over_change_nothing() -> None:
    """A client leaves before its first token. The end of its aborted request comes later."""

    async def work() -> None:
        turns = Turns(100, 500, 1 << 20)
        gone = ask(turns, 900)
        turns.end(gone)
        turns.started(gone)
        turns.end(gone)
        assert ask(turns, 5000).came.done(), "nobody is inside, and still it waits"

    run(work)


def test_a_turn_that_stops_waiting_makes_room_for_those_behind_it() -> None:
    async def work() -> None:
        turns = Turns(4, 512, 1 << 20)
        running = ask(turns, 10, answers=2)
        many, small = ask(turns, 10, answers=4), ask(turns, 10)
        assert not many.came.done() and not small.came.done()
        turns.end(many)
        assert running.came.done() and small.came.done()
        assert turns.num_waiting == turns.waiting_tokens == 0

    run(work)


def test_too_many_prompt_tokens_are_refused_by_the_measured_speed() -> None:
    async def work() -> None:
        now = 0.0
        turns = Turns(1, 512, 1000, clock=lambda: now)
        first = ask(turns, 5000)  # alone, any prompt may
        turns.started(first)
        now = 10.0
        turns.end(first, answer_tokens=10)  # 500 tokens a second
        running = ask(turns, 10)
        waiting = ask(turns, 900)
        with pytest.raises(HTTPError) as refused:
            ask(turns, 5100)
        assert refused.value.status == 503 and refused.value.headers["retry-after"] == "10"
        turns.end(waiting)
        large = ask(turns, 5100)  # nobody else waits
        turns.end(running)
        assert large.came.done()

    run(work)
