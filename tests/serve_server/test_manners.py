"""What proxies and clients expect of any good HTTP server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from server_harness import JSON, Reply, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

CHAT = "/v1/chat/completions"
LONG = "abc " * 900


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as made:
        yield made


def test_another_method_is_refused_with_those_that_are_allowed(server: Running) -> None:
    for method, path, allowed in (
        ("GET", CHAT, {"POST"}),
        ("DELETE", CHAT, {"POST"}),
        ("PUT", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
    ):
        reply = server.call(method, path)
        assert reply.status == 405 and reply.error["code"] == "method_not_allowed"
        assert set(reply.headers["allow"].replace(" ", "").split(",")) == allowed


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/models", "/v1//models", "/%00", "/v1/Models"]
)
def test_a_path_that_is_not_there_is_an_error_of_the_api(server: Running, path: str) -> None:
    reply = server.call("PATCH" if path == "/" else "GET", path)
    assert reply.status in (404, 405), reply.data
    assert reply.error["message"] and reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/tokenizer_info"])
def test_head_is_get_without_a_body(server: Running, path: str) -> None:
    head, get = server.call("HEAD", path), server.call("GET", path)
    assert (head.status, head.data) == (200, b"") and get.data
    assert head.headers["content-type"] == get.headers["content-type"]


def test_the_server_does_not_say_what_it_is_made_of(server: Running) -> None:
    for path in ("/health", "/nothing"):
        assert "server" not in server.call("GET", path).headers


def test_streams_are_neither_kept_nor_gathered_by_proxies(server: Running) -> None:
    reply = server.chat("abc", stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "no-cache" in reply.headers["cache-control"]
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers


def test_a_silent_stream_shows_signs_of_life() -> None:
    with running(ServerSettings(port=0, limits=Limits(ping_s=0.05))) as server:
        core = server.client._engine.loaded.core
        step = core.step

        go_on = threading.Event()

        def held() -> Any:
            go_on.wait()
            return step()

        core.step = held  # type: ignore[method-assign]
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": "abc"}], "stream": True}
        connection.request("POST", CHAT, json.dumps(body), JSON)
        answer = connection.getresponse()
        signs = b": ping\n\n" * 3
        try:
            assert answer.read(len(signs)) == signs
        finally:
            go_on.set()
        assert len(Reply(200, {}, answer.read()).events) >= 4  # and they are no events
        connection.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * (20 << 20),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 100) for i in range(10_000)),
        b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["one long line", "many lines", "a long path"],
)
def test_heads_are_bounded(server: Running, head: bytes) -> None:
    """Each is refused or the connection ends, and nothing is kept of it."""
    said = b""
    with connected(server.port) as client:
        try:
            client.sendall(head + b"\r\n\r\n")
            said = client.recv(1000)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert said == b"" or said.startswith(b"HTTP/1.1 4"), said[:100]
    assert server.call("GET", "/health").status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_a_slash_at_the_end_changes_nothing(server: Running, path: str) -> None:
    plain, other = (server.call("GET", one) for one in (path, path + "/"))
    assert plain.status == other.status == 200 and plain.data == other.data
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert server.call("POST", "/v1/chat/completions/", body).status == 200
    assert server.call("GET", "/nothing/").status == 404


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/models/mock%3A%2F%2Fecho", "/v1/models/mock%3A%2F%2Fecho"),
        ("/v1/models/x?a=b", "/v1/models/x"),
        ("/nothing", "/nothing"),
        ("/", "/"),
        ("", "/"),
    ],
)
def test_a_whole_address_is_a_target_too(server: Running, target: str, plain: str) -> None:
    whole = server.call("GET", f"http://127.0.0.1:{server.port}{target}")
    usual = server.call("GET", plain)
    assert (whole.status, whole.data) == (usual.status, usual.data)


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    with running(ServerSettings(port=0, limits=Limits(connections=3))) as server:
        held = [server.connect() for _ in range(3)]
        for one in held:
            one.request("GET", "/health")
            assert one.getresponse().read()
        with connected(server.port) as extra:
            assert extra.recv(1) == b""
        held[0].request("GET", "/health")  # the others do not notice
        assert held[0].getresponse().status == 200
        for one in held:
            one.close()
        eventually(lambda: not server.server.server_state.connections, "a connection is kept")
        assert server.call("GET", "/health").status == 200


def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    with (
        running(ServerSettings(port=0, limits=Limits(keep_alive_s=1.0))) as server,
        connected(server.port) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began, said = time.monotonic(), b""
        while piece := client.recv(1000):
            said += piece
        assert b" 200 " in said and time.monotonic() - began > 0.5


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_at(path) as server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            body = json.dumps({"messages": [{"role": "user", "content": "abc"}]}).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\ncontent-length: {len(body)}\r\n"
            client.sendall(head.encode() + b"connection: close\r\n\r\n" + body)
            said = b"".join(iter(lambda: client.recv(4096), b""))
        assert said.startswith(b"HTTP/1.1 200") and b'"content":"abc"' in said
        assert server is not None


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def running_at(path: Path) -> Iterator[Any]:
    """A server that listens on a file, as a process of its own."""
    command = [sys.executable, "-m", "mlc_llm", "serve", "--model", "mock://echo"]
    process = subprocess.Popen([*command, "--unix-socket", str(path), "--log-format", "off"])
    try:
        eventually(lambda: listens(path), "it does not listen")
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    one = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    with connected(server.port) as client:
        close = b"connection: close\r\n"
        client.sendall(one % (b"/health", b"") + one % (b"/ready", b"") + one % (b"/no", close))
        said = b"".join(iter(lambda: client.recv(4096), b""))
    places = [said.find(one) for one in (b'"ok"', b'"ready"', b"not_found")]
    assert -1 not in places and places == sorted(places)


def test_a_reader_that_goes_slowly_gets_everything(server: Running) -> None:
    connection = server.connect()
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
    connection.request("POST", CHAT, json.dumps(body), JSON)
    answer, data = connection.getresponse(), b""
    while piece := answer.read1(4096):
        data += piece
        time.sleep(0.002)
    connection.close()
    answers = [json.loads(one[6:]) for one in data.decode().split("\n\n")[:-2]]
    said = "".join(one["choices"][0]["delta"].get("content", "") for one in answers)
    assert data.endswith(b"data: [DONE]\n\n") and LONG.startswith(said) and len(said) > 400
