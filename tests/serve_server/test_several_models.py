"""Several models in one server: opened on demand, closed for others, never under a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_harness import JSON, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import DEFAULT_UTILIZATION, complete_config
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.pool import registry
from mlc_llm.serve.server.pool.names import slots_of
from mlc_llm.serve.server.pool.openers import (
    EngineOpener,
    Plan,
    plan_of_free,
    plan_within,
    share_alone,
    usual_budget,
)

MODELS = tuple(f"{name}=mock://echo" for name in "abc")
LONG = "abc " * 600


class Opener:
    """Opens echo engines, of 100 bytes each. `gate`: opening waits for it."""

    def __init__(self) -> None:
        self._inner = EngineOpener("cpu", EngineConfig(mode="server"))
        self.opened = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
        return Plan(self._inner.plan(model, None, None).config, 100)

    def open(self, model: str | None, plan: Plan) -> AsyncClient:
        self.opened += 1
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return self._inner.open(model, plan)


@contextmanager
def serving(opener: Opener, **more: Any) -> Iterator[Running]:
    with running(models=MODELS, opener=opener, **more) as server:
        yield server


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def states(server: Running) -> dict[str, str]:
    return {one["id"]: one["state"] for one in server.call("GET", "/v1/models").json["data"]}


def test_models_are_opened_when_they_are_asked_for() -> None:
    opener = Opener()
    with serving(opener) as server:
        assert states(server) == {"a": "ready", "b": "closed", "c": "closed"}
        assert server.call("GET", "/v1/models/b").json["max_model_len"] is None
        for model, name in ((None, "a"), ("default", "a"), ("b", "b"), ("b", "b"), ("a", "a")):
            reply = server.chat("hello", model=model)
            assert reply.status == 200 and reply.json["model"] == name
        assert opener.opened == 2
        assert states(server) == {"a": "ready", "b": "ready", "c": "closed"}
        assert server.call("GET", "/v1/models/b").json["max_model_len"] == 4096
        assert server.call("POST", "/tokenize", {"prompt": "abc", "model": "c"}).json["count"] == 3
        assert opener.opened == 3
        reply = server.chat("hello", model="d")
        assert reply.status == 404 and reply.error["message"].endswith("there is: a, b, c")


def test_many_requests_open_a_model_once_and_others_go_on() -> None:
    opener, found = Opener(), []
    with serving(opener) as server:
        opener.gate.clear()
        threads = [
            threading.Thread(target=lambda: found.append(server.chat("x", model="b").status))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: server.context.models.num_waiting == 8, "they do not wait")
        assert states(server)["b"] == "opening"
        assert server.chat("hello").status == 200  # the first model is served meanwhile
        opener.gate.set()
        for thread in threads:
            thread.join()
        assert found == [200] * 8 and opener.opened == 2


def test_the_least_recently_used_model_makes_room() -> None:
    with serving(Opener(), budget=250) as server:
        server.chat("x", model="b")
        server.chat("x", model="a")
        server.chat("x", model="c")
        assert states(server) == {"a": "ready", "b": "closed", "c": "ready"}
        server.chat("x", model="b")
        assert states(server) == {"a": "closed", "b": "ready", "c": "ready"}


def test_a_model_ends_its_answers_before_it_makes_room() -> None:
    with serving(Opener(), most_open=1) as server:
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        held = connection.getresponse()
        held.read(200)
        statuses: list[int] = []

        def ask(model: str) -> None:
            statuses.append(server.chat("x", model=model).status)

        with in_background(lambda: ask("b")):
            eventually(lambda: states(server)["a"] == "draining", "nothing is drained")
            with in_background(lambda: ask("a")):  # it comes after b
                assert statuses == []
                assert held.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        assert statuses == [200, 200]
        assert states(server) == {"a": "ready", "b": "closed", "c": "closed"}


def test_a_model_stays_if_those_who_wanted_another_one_have_gone() -> None:
    opener = Opener()
    with serving(opener, most_open=1) as server:
        first = server.connect()
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        first.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        held = first.getresponse()
        held.read(200)
        other = server.connect()
        other.request("POST", "/v1/chat/completions", json.dumps({**body, "model": "b"}), JSON)
        eventually(lambda: states(server)["a"] == "draining", "nothing is drained")
        other.close()
        eventually(lambda: states(server)["a"] == "ready", "it is still drained")
        assert server.chat("hello").status == 200
        assert held.read().endswith(b"data: [DONE]\n\n")
        first.close()
        assert opener.opened == 1


def test_a_model_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Opener()
    with serving(opener) as server:
        opener.error = UserError("the disk is full")
        for _ in range(3):  # it is tried once
            reply = server.chat("x", model="b")
            assert reply.status == 503 and reply.error["code"] == "model_not_loaded"
            assert reply.error["message"].endswith("the disk is full")
            assert reply.headers["x-should-retry"] == "false"
        assert opener.opened == 2 and server.chat("x").status == 200
        entry = server.call("GET", "/v1/models/b").json
        assert entry["state"] == "failed" and entry["error"] == "the disk is full"
        opener.error = None
        monkeypatch.setattr(registry, "FAILED_S", 0.0)
        assert server.chat("x", model="b").status == 200
        assert server.call("GET", "/v1/models/b").json["error"] is None


def test_too_many_requests_for_a_closed_model_are_refused() -> None:
    opener = Opener()
    with serving(opener, most_waiting=1) as server:
        opener.gate.clear()
        with in_background(lambda: server.chat("x", model="b") and None):
            eventually(lambda: server.context.models.num_waiting == 1, "it does not wait")
            reply = server.chat("x", model="b")
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
            opener.gate.set()


def test_a_client_that_goes_while_its_model_opens_holds_nothing() -> None:
    opener = Opener()
    with serving(opener) as server:
        opener.gate.clear()
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": "x"}], "model": "b"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        eventually(lambda: server.context.models.num_waiting == 1, "it does not wait")
        connection.close()
        eventually(lambda: server.context.models.num_waiting == 0, "it still waits")
        opener.gate.set()
        eventually(lambda: states(server)["b"] == "ready", "it is not opened")
        assert [slot.running for slot in server.context.models.slots] == [0, 0, 0]


def test_any_name_is_the_first_model() -> None:
    settings = ServerSettings(port=0, any_name=True)
    with running(settings, MODELS) as server:
        assert server.chat("x", model="gpt-5").json["model"] == "gpt-5"
        assert server.chat("x", model="b").json["model"] == "b"
        assert states(server)["b"] == "ready"


def test_names_of_models(tmp_path: Path) -> None:
    assert [one.names for one in slots_of(["x=mock://echo"], ["y", "z"])] == [("y", "z")]
    assert [one.names for one in slots_of(MODELS, ["y", "z", "w"])] == [("y",), ("z",), ("w",)]
    assert slots_of(["mock://echo"], ())[0].names == ("mock://echo",)
    for models, names in (
        (MODELS, ["y", "z"]),
        (["mock://echo", "mock://echo"], []),
        (["default=mock://echo"], []),
    ):
        with pytest.raises(InvalidField):
            slots_of(models, names)
    with pytest.raises(UserError, match="no such file"):
        slots_of(["mock://echo", f"x={tmp_path}/missing.gguf"], ())


def size_of(weight_bytes: int) -> ModelSize:
    return ModelSize(
        groups=(KVSize(2, 2 * 64),),
        query_width=64,
        kv_width=32,
        head_dim=16,
        hidden_size=64,
        intermediate_size=128,
        vocab_size=256,
        context_window=4096,
        weight_bytes=weight_bytes,
    )


def test_a_model_gets_what_its_share_allows() -> None:
    config, budget = EngineConfig(mode="server", max_num_sequence=4), 200 << 20
    small = plan_within(config, size_of(1 << 20), budget)
    assert small.bytes <= budget and small.config.max_total_sequence_length == 4 * 4096
    less = plan_within(config, size_of(budget - (70 << 20)), budget)
    tokens = less.config.max_total_sequence_length or 0
    assert budget - (1 << 20) < less.bytes <= budget and 16 <= tokens < 4 * 4096
    with pytest.raises(UserError, match="Insufficient memory"):
        plan_within(config, size_of(budget), budget)
    assert usual_budget(lambda: 1000) == 850
    encoder = replace(size_of(1 << 20), is_encoder=True)
    one = plan_within(config, encoder, budget)
    assert complete_config(one.config, encoder, budget)[1].total(4096 + 4 * 16) == one.bytes


def test_a_model_that_is_opened_again_takes_what_is_free_by_then() -> None:
    """Other programs may have taken memory since the server began."""
    config, budget = EngineConfig(mode="server", max_num_sequence=4), 200 << 20
    plan = plan_within(config, size_of(1 << 20), budget)
    assert plan_of_free(plan, lambda: 2 * plan.bytes) is plan
    free = int((plan.bytes - (1 << 20)) / DEFAULT_UTILIZATION)
    left = usual_budget(lambda: free)
    smaller = plan_of_free(plan, lambda: free)
    assert left - (1 << 20) < smaller.bytes <= left
    assert (
        complete_config(smaller.config, size_of(1 << 20), left)[1].total(
            smaller.config.max_total_sequence_length or 0
        )
        == smaller.bytes
    )
    with pytest.raises(UserError, match="Insufficient memory"):
        plan_of_free(plan, lambda: 1 << 20)
    stated = plan_within(replace(config, max_total_sequence_length=8192), size_of(1 << 20), budget)
    assert plan_of_free(stated, lambda: 1 << 20) is stated, "what the user has said stays"


def test_one_model_alone_leaves_memory_to_others_unless_it_needs_it() -> None:
    """Its opener is told half of what is free, and the 85 % that it may take if need be."""
    budget = usual_budget(lambda: 1000)
    asked: list[tuple[int | None, int | None]] = []

    class Asked(Opener):
        def plan(self, model: str | None, budget: int | None, share: int | None) -> Plan:
            asked.append((budget, share))
            return super().plan(model, budget, share)

    share = share_alone(budget)
    one = registry.ModelRegistry(slots_of(["mock://echo"], []), Asked(), budget=budget, share=share)
    try:
        one.open_now(one.default)
    finally:
        one.terminate()
    assert asked == [(850, 500)]
