"""What a request leaves behind: nothing that only a search for garbage frees. Such searches are
rare while a server has much to do."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from server_harness import Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

TIMES = 10
PACKAGES = ("mlc_llm", "starlette", "uvicorn", "h11", "pydantic")
"""asyncio's own transports refer to themselves; they are small."""


def whole(server: Running) -> None:
    assert server.chat("a b c", max_tokens=3).status == 200


def streamed(server: Running) -> None:
    assert server.chat("a b c", max_tokens=3, stream=True).status == 200


def several(server: Running) -> None:
    assert server.chat("a b c", max_tokens=3, n=3).status == 200


def wrong_value(server: Running) -> None:
    assert server.chat("a", temperature="hot").status == 400


def unknown_model(server: Running) -> None:
    assert server.chat("a", model="another").status == 404


def too_large(server: Running) -> None:
    assert server.chat("a" * 3000).status == 413


def no_route(server: Running) -> None:
    assert server.call("GET", "/another").status == 404


def no_json(server: Running) -> None:
    assert server.call("POST", "/v1/completions", b"{").status == 400


def foreign_host(server: Running) -> None:
    assert server.call("GET", "/v1/models", headers={"host": "elsewhere"}).status == 403


def left(server: Running) -> None:
    """A client that goes while its answer is streamed."""
    body = b'{"prompt": "%s", "stream": true}' % (b"x" * 900)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as connection:
        connection.sendall(head % len(body) + body)
        connection.recv(100)
    eventually(lambda: server.requests == 0, "it goes on")


def full(server: Running) -> None:
    admission = server.context.admission
    with admission.entered(admission.limit, 0):
        assert server.chat("a").status == 503


REQUESTS = [
    *(whole, streamed, several, wrong_value, unknown_model, too_large),
    *(no_route, no_json, foreign_host, left, full),
]


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    limits = Limits(body_bytes=2000)
    with running(ServerSettings(port=0, limits=limits, any_name=False)) as server:
        server.context.pace._most = lambda: 0  # refusals are not held back
        yield server


@contextmanager
def garbage() -> Iterator[list[object]]:
    """What has become garbage within it and was not freed at once."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("request_once", REQUESTS, ids=lambda one: one.__name__)
def test_a_request_leaves_no_cycles(strict: Running, request_once: Callable[..., None]) -> None:
    for _ in range(2):  # the first ones make what is kept
        request_once(strict)
    strict.wait_alone()
    with garbage() as found:
        for _ in range(TIMES):
            request_once(strict)
        strict.wait_alone()
    kinds = Counter(type(one).__module__ + "." + type(one).__qualname__ for one in found)
    ours = {kind: n for kind, n in kinds.items() if kind.startswith(PACKAGES)}
    assert sum(ours.values()) < TIMES, ours  # the last one's thread may still hold something
    frames = kinds["builtins.frame"] + kinds["builtins.coroutine"] + kinds["builtins.traceback"]
    assert frames < TIMES, kinds
