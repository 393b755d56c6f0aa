"""An engine that does not move is seen, and one that is only slow is left alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server_harness import JSON, Running, running
from threaded_harness import eventually

from mlc_llm.runtime.batch import Batch, BatchOutput
from mlc_llm.serve.core.mock_echo import EchoRunner
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

MODELS = ("a=mock://echo", "b=mock://echo")


class Freezer:
    """Stops the engine whose prompt has the word `freeze`, until `gate` opens."""

    def __init__(self, chunk_s: float = 0.0) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.chunk_s = chunk_s
        self.chunks = 0

    @contextmanager
    def installed(self) -> Iterator[Freezer]:
        usual, freezer = EchoRunner.run, self

        def run(self: EchoRunner, batch: Batch) -> BatchOutput:
            if any(b"freeze" in bytes(row.token_ids) for row in batch.rows):
                freezer.entered.set()
                freezer.gate.wait()
            if any(len(row.token_ids) > 1 for row in batch.rows):
                freezer.chunks += 1
                time.sleep(freezer.chunk_s)
            return usual(self, batch)

        EchoRunner.run = run  # type: ignore[method-assign]
        try:
            yield self
        finally:
            self.gate.set()
            EchoRunner.run = usual  # type: ignore[method-assign]


def settings(**more: Any) -> ServerSettings:
    return ServerSettings(port=0, limits=Limits(stall_s=1.0), **more)


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
            assert freezer.entered.wait(10)
        for thread in threads:
            thread.join(14)
        assert [one["error"]["code"] for one in found] == ["engine_stalled"] * 2
        assert "has not moved for" in found[0]["error"]["message"]
        reply = server.call("GET", "/ready")
        assert reply.status == 503 and "'a'" in reply.error["message"]
        started = time.monotonic()
        assert server.call("GET", "/health").status == 200
        assert time.monotonic() - started < 1.0
        assert server.chat("b").error["code"] == "engine_stalled"
        assert server.chat("b", model="b").status == 200  # another model
        assert server.call("GET", "/v1/models/a").json["state"] == "stalled"
        freezer.gate.set()
        eventually(lambda: server.call("GET", "/ready").status == 200, "it is not ready")
        server.wait_idle()
        assert server.chat("b").status == 200


def test_a_long_prompt_is_no_stall() -> None:
    with Freezer(chunk_s=0.6).installed() as freezer, running(settings(), chunk=64) as server:
        asking = threading.Thread(target=lambda: server.chat("x" * 500, max_tokens=2))
        asking.start()
        while asking.is_alive():
            assert server.call("GET", "/ready").status == 200
            time.sleep(0.05)
        asking.join()
        assert freezer.chunks >= 7  # so it took several times the limit


def test_an_idle_engine_is_no_stall() -> None:
    with running(settings()) as server:
        assert server.chat("a").status == 200
        time.sleep(1.5)
        assert server.call("GET", "/ready").status == 200


def test_a_stalled_engine_can_be_replaced() -> None:
    with Freezer().installed() as freezer, running(settings(on_stall="restart")) as server:
        assert in_stream(server, "freeze")["error"]["code"] == "engine_stalled"
        assert server.chat("hello").json["choices"][0]["message"]["content"] == "hello"
        assert server.call("GET", "/ready").status == 200
        assert server.context.models.has_lost_threads
        freezer.gate.set()


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
