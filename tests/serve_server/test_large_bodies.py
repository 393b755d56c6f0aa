"""Large bodies: what all of them together may hold, and for how long one may hold up the others."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from server_harness import Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.protocol.base import MOST_FIELDS
from mlc_llm.serve.server.limits.body import MOST_MARKS, SMALL_BYTES
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

PATH = "/v1/chat/completions"
LARGE = 2 * SMALL_BYTES


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    settings = ServerSettings(port=0, limits=Limits(held_bytes=3 * LARGE))
    with running(settings) as one:
        yield one


def half_sent(server: Running, size: int) -> socket.socket:
    """A request whose body lacks its end."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size + 1}\r\n\r\n"
    made.sendall(head.encode() + b" " * size)
    return made


def has_held(server: Running, size: int) -> bool:
    found: int = server.context.bodies.held
    return found == size


def test_bodies_that_come_are_bounded_together(server: Running) -> None:
    with ExitStack() as those:
        for number in (1, 2, 3):
            those.enter_context(half_sent(server, LARGE))
            has_come = partial(has_held, server, number * LARGE)
            eventually(has_come, "it is not counted")
        last = those.enter_context(half_sent(server, LARGE))
        head = last.recv(4096).lower()
        assert head.startswith(b"http/1.1 503 ") and b"retry-after: " in head
        assert b"connection: close" in head
        assert server.chat("a small one").status == 200
    eventually(lambda: has_held(server, 0), "bodies of clients that have gone are kept")
    assert server.chat("a" * LARGE).status in (200, 400)
    eventually(lambda: has_held(server, 0), "a body is kept")


def test_one_body_beyond_the_bound_is_read_alone(server: Running) -> None:
    reply = server.chat("a" * 4 * LARGE)
    assert reply.status == 400 and "maximum context length" in reply.error["message"]
    eventually(lambda: has_held(server, 0), "a body is kept")


def test_memory_goes_back_when_bodies_have_gone_that_were_no_requests(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(server.server._garbage, "look", lambda *, is_busy: looks.append(is_busy))
    with half_sent(server, LARGE):
        eventually(lambda: True in looks, "the server rests while a body comes")


def test_who_sends_a_body_is_told_that_the_server_ends(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server, half_sent(server, 10) as client:
        eventually(lambda: len(server.context.bodies._coming) == 1, "it does not come")
        server.server.end()
        said = b""
        while piece := client.recv(4096):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["message"] == "the server is ending"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("mark", MOST_MARKS)
def test_bodies_with_too_many_values_are_not_read(server: Running, mark: str) -> None:
    most = MOST_MARKS[mark]
    reply = server.call("POST", PATH, mark.encode() * (most + 1))
    assert reply.status == 413 and f"{most} times {mark!r}" in reply.error["message"]
    reply = server.call("POST", PATH, mark.encode() * most)
    assert reply.status == 400 and "Failed to parse JSON" in reply.error["message"]


@pytest.mark.parametrize(("path", "place"), [(PATH, ""), ("/api/chat", "options")])
def test_an_object_has_so_many_fields(server: Running, path: str, place: str) -> None:
    many = {str(number): 0 for number in range(MOST_FIELDS + 1)}
    body = {"messages": [{"role": "user", "content": "a"}], **({place: many} if place else many)}
    reply = server.call("POST", path, body)
    assert reply.status == 400 and f"at most {MOST_FIELDS}" in reply.data.decode()
