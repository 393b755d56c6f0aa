"""The server over real sockets: answers, errors, streams, clients that go."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest
from server_harness import JSON, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

LONG = "abc " * 600
ASKED = {"role": "user", "content": "hello"}
WRONG: list[tuple[str, Any, str]] = [
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ("/v1/chat/completions", {"messages": "a"}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 0}, "n"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -5}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": [1, 99999999]}, "prompt token id"),
    ("/v1/completions", {"prompt": "a", "debug_config": {"ignore_eos": True}}, "debug_config"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "model": 5}, "model"),
    ("/tokenize", {"prompt": "a", "other": 1}, "other"),
    ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
    ("/tokenize", {"prompt": "a", "messages": []}, "messages"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [ASKED], "continue_final_message": True}, "continue_final_message"),
    ("/tokenize", {"messages": [ASKED], "add_generation_prompt": False}, "add_generation_prompt"),
    ("/tokenize", {"messages": [ASKED], "add_special_tokens": True}, "add_special_tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
]


def test_tokens_of_a_chat_are_those_that_it_computes(server: Running) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    for more in ({}, {"tools": [tool]}, {"tools": [tool], "tool_choice": "none"}):
        body = {"messages": [ASKED], **more}
        found = server.call("POST", "/tokenize", {**body, "continue_final_message": False}).json
        answer = server.call("POST", "/v1/chat/completions", {**body, "max_tokens": 1}).json
        assert found["count"] == len(found["tokens"]) == answer["usage"]["prompt_tokens"]
    too_long = {"messages": [{**ASKED, "content": "a" * 5000}]}
    found = server.call("POST", "/tokenize", too_long).json
    assert found["error"]["code"] == "context_length_exceeded"


def test_a_whole_chat(server: Running) -> None:
    reply = server.chat("hello", n=2, model="default")
    assert reply.status == 200
    body = reply.json
    assert body["object"] == "chat.completion" and body["model"] == "mock://echo"
    assert [one["message"]["content"] for one in body["choices"]] == ["hello", "hello"]
    assert body["usage"]["total_tokens"] == 15
    server.wait_idle()


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_a_streamed_chat(server: Running, prefix: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
    }
    reply = server.call("POST", f"{prefix}/chat/completions", body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last = reply.events
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 10
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["delta"] == {} and own[-1]["finish_reason"] == "stop"
        assert all(set(one["delta"]) == {"content"} for one in own[1:-1])
        assert all(one["finish_reason"] is None for one in own[:-1])
        assert "".join(one["delta"]["content"] for one in own[1:-1]) == "hello"
    server.wait_idle()


def test_completions_whole_and_streamed(server: Running) -> None:
    whole = server.call("POST", "/v1/completions", {"prompt": ["ab", "c"], "echo": True}).json
    assert [one["text"] for one in whole["choices"]] == ["abab", "cc"]
    reply = server.call("POST", "/completions", {"prompt": "ab", "stream": True})
    assert "".join(one["choices"][0]["text"] for one in reply.events) == "ab"


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_wrong_requests_name_the_field(server: Running, path: str, body: Any, param: str) -> None:
    reply = server.call("POST", path, body)
    assert reply.status == 400, reply.data
    error = reply.error
    assert error["type"] == "invalid_request_error"
    assert param in (error["param"], error["message"].split(" ")[0]) or param in error["message"]


def test_a_prompt_that_is_too_long(server: Running) -> None:
    error = server.chat("x" * 5000).error
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 4096 tokens.")
    assert "context_length_exceeded" in error["message"]
    server.wait_idle()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'{"a": NaN}',
        b'\xff\xfe{"a": 1}',
        b"[" * 100000,
        b'{"a": 1e999}',
        b"null",
    ],
)
def test_what_is_no_json_object(server: Running, data: bytes) -> None:
    reply = server.call("POST", "/v1/chat/completions", data, JSON)
    assert reply.status == 400 and reply.error["message"]


def test_content_types_and_codings(server: Running) -> None:
    path = "/v1/chat/completions"
    assert server.call("POST", path, b"{}", {"content-type": "text/plain"}).status == 415
    assert server.call("POST", path, b"{}", {**JSON, "content-encoding": "gzip"}).status == 415


def test_unknown_paths_methods_and_models(server: Running) -> None:
    assert server.call("GET", "/nothing").error["code"] == "not_found"
    reply = server.call("GET", "/v1/chat/completions")
    assert reply.status == 405 and reply.headers["allow"] == "POST"
    reply = server.chat("a", model="gpt-5")
    assert reply.status == 404 and reply.error["code"] == "model_not_found"
    assert "mock://echo" in reply.error["message"]
    assert server.call("GET", "/v1/models/gpt-5").status == 404
    assert server.call("GET", "/v1/models/mock://echo").json["max_model_len"] == 4096
    assert [one["id"] for one in server.call("GET", "/models").json["data"]] == ["mock://echo"]


def test_fields_without_effect_are_named(server: Running) -> None:
    assert server.chat("a", foo=1, bar=2).headers["x-ignored-params"] == "foo,bar"
    assert "x-ignored-params" not in server.chat("a").headers


def test_fields_without_effect_are_refused_if_wished() -> None:
    with running(ServerSettings(port=0, strict_params=True)) as strict:
        reply = strict.chat("a", foo=1, bar=2)
        assert reply.status == 400 and reply.error["code"] == "ignored_params"
        assert reply.error["param"] == "foo" and "foo,bar" in reply.error["message"]
        assert strict.chat("a", max_tokens=2).status == 200


def test_tokens(server: Running) -> None:
    found = server.call("POST", "/tokenize", {"prompt": "abc"}).json
    assert found["count"] == 3
    text = server.call("POST", "/detokenize", {"tokens": found["tokens"]}).json
    assert text == {"prompt": "abc"}
    assert server.call("GET", "/tokenizer_info").json["vocab_size"] == 256


def test_the_name_of_a_control_token_alone_is_that_token(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients look up the token that ends a text so. The echo engine has none of its own."""
    tokenizer = server.client.model.tokenizer
    monkeypatch.setattr(tokenizer, "special_tokens", {"<end>": 7})
    for more in ({}, {"add_special_tokens": False}):
        assert server.call("POST", "/tokenize", {"prompt": "<end>", **more}).json["tokens"] == [7]
        assert server.call("POST", "/tokenize", {"prompt": "<end>a", **more}).json["count"] == 6


def test_health_and_metrics(server: Running) -> None:
    assert server.call("GET", "/health").json == {"status": "ok"}
    assert server.call("GET", "/ready").json == {"status": "ready"}
    server.chat("abc")
    text = server.call("GET", "/metrics").data.decode()
    assert "completion_tokens_sum" in text and "server_answers_limit" in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_request(server: Running, stream: bool) -> None:
    connection = server.connect()
    body = {"messages": [{"role": "user", "content": LONG}], "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    if stream:
        connection.getresponse().read(300)
    else:
        eventually(lambda: server.requests == 1, "it is not begun")
    assert server.requests == 1
    assert connection.sock is None or connection.sock.close() is None
    connection.close()
    server.wait_idle()


def test_a_request_that_is_ended_says_so(server: Running) -> None:
    connection = server.connect()
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    reply = connection.getresponse()
    reply.read(300)
    server.client.abort_all()
    last = reply.read().decode().strip().split("\n\n")[-1]
    connection.close()
    assert "ended by the server" in json.loads(last.removeprefix("data: "))["error"]["message"]
    server.wait_idle()


def test_too_large_bodies() -> None:
    limits = Limits(body_bytes=1000)
    with running(ServerSettings(port=0, limits=limits)) as server:
        assert server.chat("x" * 2000).error["code"] == "body_too_large"
        connection = server.connect()  # the same without saying so before
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("content-type", "application/json")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        connection.send(b"7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n")
        assert connection.getresponse().status == 413
        connection.close()


def test_slow_heads_and_bodies_are_given_up() -> None:
    limits = Limits(header_s=0.3, body_s=0.3)
    with running(ServerSettings(port=0, limits=limits)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as half:
            half.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-")
            assert half.recv(100) == b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as half:
            half.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ncontent-length: 100\r\n\r\n{"
            )
            assert b" 408 " in half.recv(1000)
        assert server.chat("still here").status == 200


def test_an_overloaded_server_says_when_to_try_again() -> None:
    with running(ServerSettings(port=0, limits=Limits(queue=0)), sequences=1) as server:
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        held = connection.getresponse()
        held.read(200)
        refused = server.chat("a")
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.error["code"] == "overloaded"
        assert server.call("GET", "/health").status == 200
        rest = held.read()  # the first one goes on to its end
        connection.close()
        assert rest.endswith(b"data: [DONE]\n\n")
        server.wait_idle()
        assert server.chat("a").status == 200
        assert server.chat("a", n=2).status == 400  # there is never room for two


def test_an_ending_server_finishes_what_runs() -> None:
    with running() as server:
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        held = connection.getresponse()
        held.read(200)
        other = server.connect()
        other.request("GET", "/ready")
        assert other.getresponse().read() == b'{"status":"ready"}'
        server.server.end()
        assert held.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        other.close()


def test_many_clients_at_once(server: Running) -> None:
    found: dict[int, str] = {}

    def one(i: int) -> None:
        found[i] = server.chat(f"text {i}").json["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"text {i}" for i in range(16)}


def test_tokens_are_sent_at_once(server: Running) -> None:
    """Without this option the system collects small pieces while others are on their way."""
    connection = server.connect()
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
        (own,) = [
            one.transport.get_extra_info("socket")
            for one in server.server.server_state.connections
            if one.client == connection.sock.getsockname()  # type: ignore[union-attr]
        ]
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        connection.close()


def test_connections_are_kept(server: Running) -> None:
    connection = server.connect()
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
    assert isinstance(connection, http.client.HTTPConnection)
    connection.close()


def test_what_curl_sends_is_read_as_json_but_not_from_a_page_of_others(server: Running) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    assert server.call("POST", "/v1/completions", body, form).status == 200
    assert server.call("POST", "/v1/completions", b"prompt=a", form).status == 400
    stranger = {**form, "origin": "https://stranger.example"}
    assert server.call("POST", "/v1/completions", body, stranger).status == 403
