"""The timer of streams, on a clock of our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc_llm.serve.server.streams import lazy_timer
from mlc_llm.serve.server.streams.lazy_timer import LazyTimer


class Clock:
    """An event loop that has timers and nothing else."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.num_set = 0

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Clock:
        self.num_set += 1
        self.timers.append((self.now + seconds, call))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def run_to(self, end: float) -> None:
        while due := [one for one in self.timers if one[0] <= end]:
            self.timers.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lazy_timer.asyncio, "get_running_loop", lambda: found)
    return found


def test_it_calls_after_its_time_and_again(clock: Clock) -> None:
    calls: list[float] = []
    timer = LazyTimer(10, lambda: calls.append(clock.now))
    clock.run_to(4)
    timer.begin()
    clock.run_to(13.9)
    assert calls == []
    clock.run_to(34)
    assert calls == [14, 24, 34]


def test_each_begin_puts_it_off_and_sets_no_timer(clock: Clock) -> None:
    calls: list[float] = []
    timer = LazyTimer(10, lambda: calls.append(clock.now))
    for second in range(1, 40):
        clock.run_to(second)
        timer.begin()
    assert calls == [] and clock.num_set <= 6
    clock.run_to(60)
    assert calls == [49, 59]


def test_nothing_is_called_once_it_is_cancelled(clock: Clock) -> None:
    calls: list[float] = []
    timer = LazyTimer(10, lambda: calls.append(clock.now))
    timer.begin()
    clock.run_to(9)
    timer.cancel()
    clock.run_to(200)
    assert calls == []
