"""Ollama's API over real sockets, on the echo engine."""

from __future__ import annotations

import json
from typing import Any

from server_harness import JSON, Running, running

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys

LONG = "abc " * 400


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().splitlines()]


def test_chats(server: Running) -> None:
    reply = server.call("POST", "/api/chat", {"model": "default:latest", "messages": said("hey")})
    assert reply.headers["content-type"] == "application/x-ndjson"
    *found, last = lines(reply.data)
    assert "".join(one["message"]["content"] for one in found) == "hey"
    assert last["done_reason"] == "stop" and last["eval_count"] == last["prompt_eval_count"] == 3
    assert last["total_duration"] > 0 and last["model"] == "default:latest"
    whole = server.call("POST", "/api/chat", {"messages": said("hey"), "stream": False}).json
    assert whole["message"] == {"role": "assistant", "content": "hey"} and whole["done"]
    server.wait_idle()


def test_prompts(server: Running) -> None:
    for raw in (False, True):
        *found, last = lines(
            server.call("POST", "/api/generate", {"prompt": "hey", "raw": raw}).data
        )
        assert "".join(one["response"] for one in found) == "hey" and last["done"]
    body = {"prompt": "hey", "stream": False, "options": {"num_predict": 2}}
    reply = server.call("POST", "/api/generate", body)
    assert (reply.json["response"], reply.json["done_reason"]) == ("he", "length")
    server.wait_idle()


def test_requests_for_nothing(server: Running) -> None:
    for path, body in (("chat", {}), ("generate", {"prompt": ""})):
        (found,) = lines(server.call("POST", f"/api/{path}", body).data)
        assert found["done"] and found["done_reason"] == "load"


def test_what_the_command_line_does_is_named(server: Running) -> None:
    calls = (("POST", "pull"), ("POST", "create"), ("DELETE", "delete"))
    for method, path in calls:
        reply = server.call(method, f"/api/{path}", {"model": "llama3.2"})
        assert reply.status == 404 and "mlc_llm pull" in reply.json["error"]
    assert "mlc_llm" not in server.call("POST", "/api/nothing", {}).json["error"]


def test_embeddings(server: Running) -> None:
    body = {"model": "default", "input": ["ab", "c"], "truncate": True, "options": {"num_gpu": 1}}
    reply = server.call("POST", "/api/embed", body)
    found = server.call("POST", "/v1/embeddings", {"input": ["ab", "c"]})
    assert reply.json["embeddings"] == [one["embedding"] for one in found.json["data"]]
    assert reply.json["prompt_eval_count"] == 3 and reply.json["model"] == "default"
    assert reply.headers["x-ignored-params"] == "options.num_gpu,truncate"
    wrong = server.call("POST", "/api/embed", {"input": []})
    assert wrong.status == 400 and "input" in wrong.json["error"]


def test_the_embedding_of_one_text_for_older_clients(server: Running) -> None:
    body = {"model": "default", "prompt": "ab", "options": {"num_gpu": 1}}
    reply = server.call("POST", "/api/embeddings", body)
    (found,) = server.call("POST", "/v1/embeddings", {"input": "ab"}).json["data"]
    assert reply.json == {"embedding": found["embedding"]}
    assert reply.headers["x-ignored-params"] == "options.num_gpu"
    assert server.call("POST", "/api/embeddings", {"prompt": ""}).status == 400


def test_models(server: Running) -> None:
    (listed,) = server.call("GET", "/api/tags").json["models"]
    assert listed["name"] == listed["model"] == "mock://echo"
    (loaded,) = server.call("GET", "/api/ps").json["models"]
    assert loaded["context_length"] == 4096
    shown = server.call("POST", "/api/show", {"model": "mock://echo"}).json
    assert "completion" in shown["capabilities"]
    assert server.call("GET", "/api/version").json["version"]


def test_fields_without_effect_are_named(server: Running) -> None:
    body = {"messages": said("a"), "options": {"num_gpu": 1}}
    reply = server.call("POST", "/api/chat", body)
    assert reply.headers["x-ignored-params"] == "options.num_gpu"


def test_errors_have_their_shape(server: Running) -> None:
    def error(reply: Any, status: int) -> str:
        assert reply.status == status and set(reply.json) == {"error"}
        words: str = reply.json["error"]
        return words

    body = {"messages": said("a"), "model": "llama3"}
    assert "mock://echo" in error(server.call("POST", "/api/chat", body), 404)
    assert "not found" in error(server.call("POST", "/api/pull", body), 404).lower()
    wrong = {"prompt": "a", "options": {"temperature": -1}}
    assert "options.temperature" in error(server.call("POST", "/api/generate", wrong), 400)
    long = {"messages": said("x" * 5000)}
    assert "context length" in error(server.call("POST", "/api/chat", long), 400)
    with running(ServerSettings(port=0, keys=read_keys(["key"], None))) as locked:
        assert "key" in error(locked.call("GET", "/api/tags"), 401)


def test_an_answer_that_is_ended_says_so(server: Running) -> None:
    connection = server.connect()
    connection.request("POST", "/api/chat", json.dumps({"messages": said(LONG)}), JSON)
    reply = connection.getresponse()
    reply.read(900)
    server.client.abort_all()
    last = json.loads(reply.read().decode().splitlines()[-1])
    connection.close()
    assert set(last) == {"error"} and "ended by the server" in last["error"]
    server.wait_idle()


def test_signs_of_life() -> None:
    with running(ServerSettings(port=0, limits=Limits(ping_s=0.0001))) as server:
        data = server.call("POST", "/api/chat", {"messages": said(LONG)}).data
    assert b"\n {" in data or data.startswith(b" ")
    *found, last = lines(data)
    assert "".join(one["message"]["content"] for one in found) == LONG and last["done"]
