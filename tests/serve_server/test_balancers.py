"""What routers in front of several servers ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_harness import Running, running

from mlc_llm import __version__
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.server.routes import balancers
from mlc_llm.serve.serving_page import SERVING


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_what_the_server_is(server: Running, path: str) -> None:
    found = server.call("GET", path).json
    config = server.client.engine_config
    assert found["served_model_name"] == "mock://echo" and found["version"] == __version__
    assert found["max_running_requests"] == config.max_num_sequence
    assert found["max_total_num_tokens"] == config.max_total_sequence_length
    assert found["max_model_len"] == server.client.model.context
    assert found["is_embedding"] is False


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_what_the_model_is(server: Running, path: str) -> None:
    found = server.call("GET", path).json
    assert found == {"served_model_name": "mock://echo", "is_generation": True}


def test_an_encoder_generates_nothing(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = server.client.model._replace(is_encoder=True)
    monkeypatch.setattr(type(server.client), "model", property(lambda _: encoder))
    assert server.call("GET", "/server_info").json["is_embedding"]
    assert not server.call("GET", "/model_info").json["is_generation"]


def test_the_load_of_an_idle_server_is_none(server: Running) -> None:
    server.wait_idle()
    assert server.call("GET", "/get_load").json == [
        {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    ]


def test_the_load_counts_what_waits_before_the_engine(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"num_requests_running": 3, "num_requests_waiting": 2, "kv_cache_usage": 0.5}

    async def metrics(*_: object) -> EngineMetrics:
        return EngineMetrics({SERVING: numbers})

    turns = server.context.models.default.turns
    room = server.client.engine_config.max_total_sequence_length
    assert turns is not None and room
    monkeypatch.setattr(balancers, "engine_metrics", metrics)
    monkeypatch.setattr(turns, "waiting_tokens", 70)
    monkeypatch.setattr(type(turns), "num_waiting", 4)
    assert server.call("GET", "/get_load").json == [
        {"dp_rank": 0, "num_reqs": 9, "num_waiting_reqs": 6, "num_tokens": room // 2 + 70}
    ]


def test_an_engine_that_does_not_answer_has_no_load(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def metrics(*_: object) -> None:
        return None

    monkeypatch.setattr(balancers, "engine_metrics", metrics)
    assert server.call("GET", "/get_load").json == []
