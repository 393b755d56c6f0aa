"""Ctrl-C waits for the end of a block, and is not lost there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from mlc_llm.support import interrupts
from mlc_llm.support.interrupts import HeldInterrupts


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_at_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        press()
        press()
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_happens_without_one() -> None:
    with HeldInterrupts():
        pass
    with pytest.raises(KeyboardInterrupt):
        press()


def test_the_outermost_block_decides() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts() as outer:
        with HeldInterrupts() as inner:
            press()
            inner.let_through()
        done.append("behind the inner block")
        outer.let_through()
        done.append("never")
    assert done == ["behind the inner block"]


def test_a_handler_of_the_users_is_called_once_and_stays() -> None:
    calls: list[int] = []
    handler: Callable[..., None] = lambda number, frame: calls.append(number)  # noqa: E731
    signal.signal(signal.SIGINT, handler)
    with HeldInterrupts() as held:
        press()
        assert calls == []
        held.let_through()
        assert calls == [signal.SIGINT]
    assert calls == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_is_set_within_stays() -> None:
    with HeldInterrupts():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_python_handles_nothing_nothing_is_held(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with HeldInterrupts():
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_hold_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with HeldInterrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_work_that_is_stuck_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, interrupts.PATIENCE_S + 1])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        press()
        press()
        done.append("two at once wait")
        press()
        done.append("never")
    assert done == ["two at once wait"]
