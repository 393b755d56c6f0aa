"""Anthropic's API over real sockets, on the echo engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from server_harness import JSON, Running, named_events, running

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ModelResponse
from mlc_llm.serve.anthropic.models import page_body
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys

LONG = "abc " * 600
PATH = "/v1/messages"


def asking(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4000, **more}


@pytest.mark.parametrize("path", [PATH, "/messages"])
def test_a_whole_message(server: Running, path: str) -> None:
    reply = server.call("POST", path, asking("hello"), {"anthropic-version": "2023-06-01"})
    found = reply.json
    assert found["id"].startswith("msg_") and reply.headers["request-id"].startswith("req_")
    assert found["content"] == [{"type": "text", "text": "hello"}]
    assert found["stop_reason"] == "end_turn" and found["model"] == "mock://echo"
    assert found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"] == 5
    assert "x-ignored-params" not in reply.headers
    server.wait_idle()


def test_a_streamed_message(server: Running) -> None:
    reply = server.call("POST", PATH, asking("hello", stream=True))
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    start, opened, *deltas, closed, delta, stop = named_events(reply.data)
    assert start["message"]["usage"]["input_tokens"] == 5
    assert opened["type"] == "content_block_start" and closed["type"] == "content_block_stop"
    assert "".join(one["delta"]["text"] for one in deltas) == "hello"
    assert delta["delta"]["stop_reason"] == "end_turn" and delta["usage"]["output_tokens"] == 5
    assert stop == {"type": "message_stop"}
    server.wait_idle()


def test_why_it_ends(server: Running) -> None:
    found = server.call("POST", PATH, asking("one two", stop_sequences=[" t", "x"])).json
    assert found["content"][0]["text"] == "one"
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", " t")
    found = server.call("POST", PATH, asking("one two", max_tokens=3)).json
    assert found["content"][0]["text"] == "one" and found["stop_reason"] == "max_tokens"


def test_counting_tokens(server: Running) -> None:
    body = asking("hello", system="Be.")
    assert server.call("POST", f"{PATH}/count_tokens", body).json == {"input_tokens": 8}
    usage = server.call("POST", PATH, body).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 8
    reply = server.call("POST", f"{PATH}/count_tokens", asking("x" * 5000))
    assert reply.json["error"]["message"].startswith("prompt is too long: ")
    server.wait_idle()


def test_fields_without_effect_are_named(server: Running) -> None:
    reply = server.call("POST", PATH, asking("a", foo=1, thinking={"type": "adaptive"}))
    assert reply.headers["x-ignored-params"] == "foo,thinking"
    reply = server.call("POST", f"{PATH}/count_tokens", asking("a", foo=1))
    assert reply.headers["x-ignored-params"] == "max_tokens,foo"


def test_errors_have_their_shape(server: Running) -> None:
    def error(reply: Any, status: int) -> dict[str, str]:
        assert reply.status == status and reply.json["type"] == "error"
        found: dict[str, str] = reply.json["error"]
        return found

    wrong = error(server.call("POST", PATH, asking("a", temperature=-1)), 400)
    assert wrong["type"] == "invalid_request_error" and "temperature" in wrong["message"]
    missing = error(server.call("POST", PATH, asking("a", model="claude")), 404)
    assert missing["type"] == "not_found_error" and "mock://echo" in missing["message"]
    assert "Failed to parse JSON" in error(server.call("POST", PATH, b"{"), 400)["message"]
    assert error(server.call("GET", PATH), 405)["type"] == "invalid_request_error"
    with running(ServerSettings(port=0, keys=read_keys(["key"], None))) as locked:
        refused = error(locked.call("POST", PATH, asking("a")), 401)
        assert refused["type"] == "authentication_error"
        assert locked.call("POST", PATH, asking("a"), {"x-api-key": "key"}).status == 200


def test_an_overloaded_server() -> None:
    with running(ServerSettings(port=0, limits=Limits(queue=0))) as server:
        admission = server.context.admission
        with admission.entered(admission.limit, 0):
            reply = server.call("POST", PATH, asking("a"))
        assert reply.status == 503 and reply.json["error"]["type"] == "overloaded_error"
        assert "retry-after" in reply.headers


def test_a_message_that_is_ended_says_so(server: Running) -> None:
    connection = server.connect()
    connection.request("POST", PATH, json.dumps(asking(LONG, stream=True)), JSON)
    reply = connection.getresponse()
    reply.read(900)
    server.client.abort_all()
    last = named_events(b"event" + reply.read().rpartition(b"\n\nevent")[2])[-1]
    connection.close()
    assert last["type"] == "error" and "ended by the server" in last["error"]["message"]
    server.wait_idle()


def test_signs_of_life() -> None:
    limits = Limits(ping_s=0.0001)
    with running(ServerSettings(port=0, limits=limits)) as server:
        reply = server.call("POST", PATH, asking(LONG[:1600], stream=True))
        found = named_events(reply.data)
    kinds = [one["type"] for one in found]  # a request that waits may get a ping first
    assert next(one for one in kinds if one != "ping") == "message_start" and "ping" in kinds
    texts = [one["delta"]["text"] for one in found if one["type"] == "content_block_delta"]
    assert "".join(texts) == LONG[:1600]


VERSION = {"anthropic-version": "2023-06-01"}


def test_the_models_as_the_client_wants_them(server: Running) -> None:
    (entry,) = server.call("GET", "/v1/models", headers=VERSION).json["data"]
    assert entry["type"] == "model" and entry["id"] == entry["display_name"] == "mock://echo"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["created_at"])
    assert entry["max_input_tokens"] == entry["max_tokens"] > 1000
    assert server.call("GET", "/v1/models/mock://echo", headers=VERSION).json == entry
    assert server.call("GET", "/v1/models").json["object"] == "list"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models/other"), ("POST", PATH)])
def test_errors_have_the_shape_and_the_id_that_the_client_shows(
    server: Running, method: str, path: str
) -> None:
    reply = server.call(method, path, None if method == "GET" else {}, VERSION)
    assert reply.json["type"] == "error" and reply.json["error"]["message"]
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert "code" in server.call("GET", "/v1/models/other").error


def test_pages_of_models() -> None:
    models = [ModelResponse(id=name) for name in "abcde"]

    def page(**query: str) -> tuple[str, Any]:
        found: Any = page_body(models, query)
        ids = "".join(one["id"] for one in found["data"])
        assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return ids, found["has_more"]

    assert page() == ("abcde", False) and page(limit="2") == ("ab", True)
    assert page(after_id="b", limit="2") == ("cd", True) and page(after_id="e") == ("", False)
    assert page(before_id="d", limit="2") == ("bc", True) and page(before_id="b") == ("a", False)
    for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "1001"}, {"after_id": "z"}):
        with pytest.raises(InvalidField, match=next(iter(query))):
            page_body(models, query)
