"""An engine that does not move is seen, and one that is only slow is left alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server_harness import JSON, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.runtime.batch import Batch, BatchOutput
from mlc_llm.serve.core.mock_echo import EchoRunner
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.pool.watch import Watch
from mlc_llm.serve.threaded import loops
from mlc_llm.serve.threaded.worker import Worker

MODELS = ("a=mock://echo", "b=mock://echo")


class Freezer:
    """Stops the engine whose prompt has the word `freeze`, until `gate` opens."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.on_step: Callable[[], object] = lambda: None

    @contextmanager
    def installed(self) -> Iterator[Freezer]:
        usual, freezer = EchoRunner.run, self

        def run(self: EchoRunner, batch: Batch) -> BatchOutput:
            if any(b"freeze" in bytes(row.token_ids) for row in batch.rows):
                freezer.entered.set()
                freezer.gate.wait()
            freezer.on_step()
            return usual(self, batch)

        EchoRunner.run = run  # type: ignore[method-assign]
        try:
            yield self
        finally:
            self.gate.set()
            EchoRunner.run = usual  # type: ignore[method-assign]


class Clock:
    """Of a watch; it can leap, so that nobody waits for a limit of a minute."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def until_stalled(self, server: Running) -> None:
        """The server's watch has this clock, which leaps until an engine is stalled."""
        server.server._watch._clock = self
        watch, usual = server.server._watch, server.server._watch._stalled
        seen = threading.Event()
        watch._stalled = lambda *args: (usual(*args), seen.set())[0]  # type: ignore[method-assign]

        def leap() -> bool:
            self.now += STALL_S
            return seen.is_set()

        eventually(leap, "it is not stalled")


STALL_S = Limits().stall_s


def settings(**more: Any) -> ServerSettings:
    return ServerSettings(port=0, **more)


def in_stream(server: Running, text: str) -> Any:
    """The last event of a streamed answer."""
    connection = server.connect()
    body = {"messages": [{"role": "user", "content": text}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    reply = connection.getresponse()
    data = reply.read().decode()
    connection.close()
    return json.loads(data.strip().split("\n\n")[-1].removeprefix("data: "))


def test_a_frozen_engine_is_seen_and_moves_again() -> None:
    with Freezer().installed() as freezer, running(settings(), MODELS) as server:
        assert server.call("GET", "/ready").status == 200
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(in_stream(server, "freeze"))),
            threading.Thread(target=lambda: found.append(server.chat("a").json)),
        ]
        for thread in threads:
            thread.start()
            assert freezer.entered.wait(PATIENCE_SECONDS)
        eventually(lambda: server.requests == 2, "they are not inside")
        Clock().until_stalled(server)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert [one["error"]["code"] for one in found] == ["engine_stalled"] * 2
        assert "has not moved for" in found[0]["error"]["message"]
        reply = server.call("GET", "/ready")
        assert reply.status == 503 and "'a'" in reply.error["message"]
        assert server.call("GET", "/health").status == 200
        assert server.chat("b").error["code"] == "engine_stalled"
        assert server.chat("b", model="b").status == 200  # another model
        assert server.call("GET", "/v1/models/a").json["state"] == "stalled"
        freezer.gate.set()
        eventually(lambda: server.call("GET", "/ready").status == 200, "it is not ready")
        server.wait_idle()
        assert server.chat("b").status == 200


def test_a_long_prompt_is_no_stall() -> None:
    with Freezer().installed() as freezer, running(settings(), chunk=64) as server:
        watch, clock = watch_of(server)

        def step() -> None:
            clock.now += 0.6 * STALL_S
            watch.look()

        freezer.on_step = step
        assert server.chat("x" * 500, max_tokens=2).status == 200
        assert clock.now > 4 * STALL_S
        (slot,) = server.context.models.slots
        assert not slot.stalled


def test_a_long_step_that_moves_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow processor: the kernels of one step take longer than the limit together."""
    launches = [0]
    monkeypatch.setattr(Worker, "launches", property(lambda _: launches[0]))
    with Freezer().installed() as freezer, running(settings()) as server:
        watch, clock = watch_of(server)
        (slot,) = server.context.models.slots
        asking = threading.Thread(target=server.chat, args=("freeze",))
        asking.start()
        assert freezer.entered.wait(PATIENCE_SECONDS)
        for _ in range(5):
            launches[0] += 1
            watch.look()
            clock.now += 0.6 * STALL_S
        assert not slot.stalled
        clock.now += 0.6 * STALL_S
        watch.look()
        assert slot.stalled
        launches[0] += 1
        watch.look()
        assert not slot.stalled
        freezer.gate.set()
        asking.join(PATIENCE_SECONDS)


def watch_of(server: Running) -> tuple[Watch, Clock]:
    """One more watch, which looks when the test says so."""
    clock = Clock()
    return Watch(server.context.models, STALL_S, "wait", lambda: None, clock), clock


def test_an_idle_engine_is_no_stall_and_one_with_work_is() -> None:
    with Freezer().installed() as freezer, running(settings()) as server:
        assert server.chat("a").status == 200
        eventually(lambda: server.client.progress.is_idle, "it works still")
        watch, clock = watch_of(server)
        (slot,) = server.context.models.slots
        for _ in range(3):
            watch.look()
            clock.now += 2 * STALL_S
        assert not slot.stalled
        asking = threading.Thread(target=server.chat, args=("freeze",))
        asking.start()
        assert freezer.entered.wait(PATIENCE_SECONDS)
        watch.look()
        clock.now += 2 * STALL_S
        watch.look()
        assert slot.stalled
        freezer.gate.set()
        asking.join(PATIENCE_SECONDS)


def test_a_stalled_engine_can_be_replaced() -> None:
    with Freezer().installed() as freezer, running(settings(on_stall="restart")) as server:
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(in_stream(server, "freeze")))
        asking.start()
        assert freezer.entered.wait(PATIENCE_SECONDS)
        Clock().until_stalled(server)
        asking.join(PATIENCE_SECONDS)
        assert found[0]["error"]["code"] == "engine_stalled"
        assert server.chat("hello").json["choices"][0]["message"]["content"] == "hello"
        assert server.call("GET", "/ready").status == 200
        assert server.context.models.has_lost_threads
        freezer.gate.set()


def test_a_model_without_an_engine_is_not_ready() -> None:
    """It stalls while it makes room for another one, whose client then leaves."""
    with (
        Freezer().installed() as freezer,
        running(settings(on_stall="restart"), MODELS, most_open=1) as server,
    ):
        models, loop = server.context.models, server.server._loop
        assert loop is not None
        slot = models.default
        loop.call_soon_threadsafe(models.take_ready, slot)  # for a client that reads slowly
        asking = threading.Thread(target=server.chat, args=("freeze",))
        asking.start()
        assert freezer.entered.wait(PATIENCE_SECONDS)
        other = server.connect()
        body = {"messages": [{"role": "user", "content": "x"}], "model": "b"}
        other.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        eventually(lambda: state(server) == "draining", "it makes no room")
        Clock().until_stalled(server)
        asking.join(PATIENCE_SECONDS)
        other.close()
        eventually(lambda: models.num_waiting == 0, "it still waits")
        eventually(lambda: not models._turn.locked(), "it is still drained")
        assert (slot.client, state(server)) == (None, "closed")
        assert server.chat("hello").status == 200 and state(server) == "ready"
        loop.call_soon_threadsafe(models.give_back, slot)
        freezer.gate.set()


@pytest.mark.parametrize("way", ["room", "unload"])
def test_a_stalled_engine_that_is_closed_is_given_up(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits until its thread ends, and the next request opens another one."""
    monkeypatch.setattr(loops, "JOIN_SECONDS", 0.5)
    with (
        Freezer().installed() as freezer,
        running(settings(debug=True), (*MODELS, "c=mock://echo"), most_open=2) as server,
    ):
        assert server.chat("x", model="c").status == 200
        asking = threading.Thread(target=server.chat, args=("freeze",))
        asking.start()
        assert freezer.entered.wait(PATIENCE_SECONDS)
        Clock().until_stalled(server)
        asking.join(PATIENCE_SECONDS)
        if way == "room":
            assert server.chat("x", model="b").status == 200
            assert state(server) == "stalled"  # c had to go: to close it frees its memory
            assert server.call("POST", "/models/load", {"model": "c"}).status == 200
            assert server.call("GET", "/v1/models/b").json["state"] == "closed"
            server.context.models._most_open = 1
            assert server.chat("x", model="b").status == 200
        else:
            assert server.call("POST", "/models/unload", {"model": "a"}).status == 200
        assert state(server) == "closed" and server.call("GET", "/ready").status == 200
        assert server.context.models.has_lost_threads
        assert server.chat("x").status == 200 and state(server) == "ready"
        freezer.gate.set()


def state(server: Running) -> str:
    found: str = server.call("GET", "/v1/models/a").json["state"]
    return found


def test_a_dead_engine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings(on_stall="restart")) as server:
        worker: Any = server.client._engine._worker

        def die() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(worker, "step", die)
        assert "the engine died: a bug" in server.chat("a").error["message"]
        eventually(
            lambda: server.call("GET", "/v1/models").json["data"][0]["state"] == "closed", ""
        )
        assert server.chat("b").status == 200
