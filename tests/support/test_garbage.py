"""When Python looks for garbage in a server."""

from __future__ import annotations

import gc

import pytest

from mlc_llm.support.garbage import RARELY, REST_S, IdleCollection, rare_collections


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collections() -> list[float]:
    return []


@pytest.fixture
def idle(clock: Clock, collections: list[float]) -> IdleCollection:
    return IdleCollection(lambda: collections.append(clock.now), clock)


def test_nothing_is_looked_for_before_any_work(
    idle: IdleCollection, clock: Clock, collections: list[float]
) -> None:
    for _ in range(5):
        idle.look(is_busy=False)
        clock.now += REST_S
    assert collections == []


def test_once_after_work_and_a_rest(
    idle: IdleCollection, clock: Clock, collections: list[float]
) -> None:
    idle.look(is_busy=True)
    clock.now += REST_S / 2
    idle.look(is_busy=True)
    clock.now += REST_S * 0.75
    idle.look(is_busy=False)
    assert collections == [], "it rests for less than a second"
    clock.now += REST_S / 2
    idle.look(is_busy=False)
    clock.now += 10 * REST_S
    idle.look(is_busy=False)
    assert collections == [100 + 1.75 * REST_S]


def test_never_while_something_runs(
    idle: IdleCollection, clock: Clock, collections: list[float]
) -> None:
    for _ in range(10):
        idle.look(is_busy=True)
        clock.now += 5 * REST_S
    assert collections == []


def test_rare_collections_end_with_the_server() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        assert gc.get_threshold() == (*before[:2], RARELY)
        raise ZeroDivisionError
    assert gc.get_threshold() == before
