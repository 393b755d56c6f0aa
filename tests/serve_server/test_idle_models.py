"""Models that nobody asks for are closed after a time: the server's, or that of a request."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timezone
from typing import Any

import pytest
from server_harness import Running, running
from threaded_harness import eventually

from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys
from mlc_llm.serve.server.pool.slot import ModelSlot, State


def slot_of(server: Running) -> ModelSlot:
    return server.context.models.default


def asked(server: Running, keep_alive: Any = None, path: str = "generate", **more: Any) -> Any:
    """The answer to a prompt of one letter."""
    body = {"prompt": "a"} if path == "generate" else {"messages": [said("a")]}
    more = {} if keep_alive is None else {"keep_alive": keep_alive, **more}
    return server.call("POST", f"/api/{path}", {**body, "stream": False, **more})


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def is_closed(server: Running) -> bool:
    return slot_of(server).client is None


def expires_in(server: Running) -> float:
    """Seconds until the model is closed, as a client sees it."""
    (model,) = server.call("GET", "/api/ps").json["models"]
    end = datetime.fromisoformat(model["expires_at"].replace("Z", "+00:00"))
    return (end - datetime.now(timezone.utc)).total_seconds()


def test_a_request_for_nothing_closes_the_model_and_another_opens_it() -> None:
    with running() as server:
        reply = server.call("POST", "/api/generate", {"keep_alive": 0})
        assert json.loads(reply.data)["done_reason"] == "unload"
        eventually(lambda: is_closed(server), "it is open")
        assert server.call("GET", "/api/ps").json["models"] == []
        assert server.call("GET", "/ready").status == 200
        assert server.chat("again").json["choices"][0]["message"]["content"] == "again"


def test_a_closed_model_is_not_opened_to_be_closed() -> None:
    with running() as server:
        server.call("POST", "/api/generate", {"keep_alive": 0})
        eventually(lambda: slot_of(server).state is State.CLOSED, "it is open")
        for path in ("generate", "chat"):
            reply = server.call("POST", f"/api/{path}", {"keep_alive": 0, "stream": False})
            assert reply.json["done"] and reply.json["done_reason"] == "unload"
            assert slot_of(server).state is State.CLOSED
        unknown = {"keep_alive": 0, "model": "nobody"}
        assert server.call("POST", "/api/generate", unknown).status == 404


@pytest.mark.parametrize("path", ["generate", "chat"])
def test_a_model_is_closed_after_the_answer(path: str) -> None:
    with running() as server:
        assert asked(server, "0s", path).status == 200
        eventually(lambda: is_closed(server), "it is open")


def test_embeddings_close_it_too() -> None:
    with running() as server:
        body = {"input": "a", "keep_alive": 0}
        assert len(server.call("POST", "/api/embed", body).json["embeddings"]) == 1
        eventually(lambda: is_closed(server), "it is open")


def test_answers_that_run_are_not_cut() -> None:
    with running() as server:
        found: list[Any] = []
        long = threading.Thread(target=lambda: found.append(server.chat("abcd" * 300)))
        long.start()
        eventually(lambda: server.requests == 1, "it was not begun")
        assert server.call("POST", "/api/chat", {"keep_alive": 0}).status == 200
        long.join()
        assert found[0].json["choices"][0]["message"]["content"] == "abcd" * 300
        eventually(lambda: is_closed(server), "it is open")


def test_how_long_it_stays_is_shown_and_counts_until_the_next_request() -> None:
    with running() as server:
        assert expires_in(server) > 1e9
        asked(server, "1h30m")
        assert 5000 < expires_in(server) <= 5400
        asked(server, 60)
        assert 30 < expires_in(server) <= 60
        asked(server, -1)
        assert expires_in(server) > 1e9
        asked(server, "10m")
        asked(server)
        assert expires_in(server) > 1e9


def test_the_time_of_the_server() -> None:
    with running(ServerSettings(port=0, keep_model_s=0.2)) as server:
        eventually(lambda: is_closed(server), "it is open")  # nobody has asked for it at all
        assert asked(server, -1).status == 200
        assert not is_closed(server)
        assert asked(server).status == 200
        eventually(lambda: is_closed(server), "it is open")


def test_with_keys_only_an_admin_closes_models() -> None:
    keys = read_keys(["first-key", "second-key"], None)
    with running(ServerSettings(port=0, keys=keys)) as server:
        head = {"authorization": "Bearer first-key"}
        reply = server.call("POST", "/api/generate", {"keep_alive": 0}, head)
        assert reply.status == 403 and "keep_alive" in reply.json["error"]
        body = {"prompt": "a", "keep_alive": 0}
        reply = server.call("POST", "/api/generate", body, head)
        assert reply.status == 200 and reply.headers["x-ignored-params"] == "keep_alive"
        assert slot_of(server).keep_s is None


@pytest.mark.parametrize("value", ["soon", "5 m", "5", True, [], "", "-", "1h2", "9" * 90])
def test_wrong_times(server: Running, value: Any) -> None:
    reply = asked(server, value)
    if value == "5":
        assert reply.status == 200  # a number as a text
        assert asked(server, -1).status == 200
    else:
        assert reply.status == 400 and "keep_alive" in reply.json["error"], reply.data
