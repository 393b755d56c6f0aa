"""Clients that are slow, that die, and that send what no client should: nobody else suffers."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_harness import JSON, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually, eventually_holds, frozen

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

PATH = "/v1/chat/completions"
LONG = "abcd" * 450


@contextmanager
def raw(server: Running, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as made:
        made.sendall(data)
        yield made


def everything(connection: socket.socket) -> bytes:
    """All that the server sends until it closes."""
    found = b""
    try:
        while piece := connection.recv(1 << 16):
            found += piece
    except OSError:  # it was cut
        pass
    return found


def request_of(body: bytes, *headers: str, path: str = PATH) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def chat_body(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


def works(server: Running) -> None:
    assert server.chat("still here").json["choices"][0]["message"]["content"] == "still here"
    server.wait_alone()
    core = server.client._engine.loaded.core

    def is_whole() -> None:
        core.check_integrity()
        runner = core._runner
        held = sum(-(-core.prefix_cache.length(one) // 16) for one in core.prefix_cache.recycling)
        assert runner.free_pages + held >= runner.limits.num_pages  # free, or kept to share

    eventually_holds(is_whole)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_reader_that_never_reads_is_given_up(stream: bool) -> None:
    limits = Limits(write_s=0.5, keep_alive_s=1)
    with running(ServerSettings(port=0, limits=limits)) as server:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            lazy.connect(("127.0.0.1", server.port))
            # Enough to fill the buffers of both sides: chunks with log-probabilities.
            more = {"stream": stream, "n": 8 if stream else 3, "top_logprobs": 20}
            lazy.sendall(request_of(chat_body("x" * 1900, logprobs=True, **more)))
            eventually(lambda: server.requests == 1, "it was not begun")
            assert server.chat("others go on").status == 200
            server.wait_alone()  # its connection is cut too, though it does not leave
        works(server)


@pytest.mark.parametrize("phase", range(5))
def test_a_client_that_goes_at_any_moment(server: Running, phase: int) -> None:
    """Before its request is whole, in the queue, in the prompt, in the answer, near its end."""
    chance = random.Random(phase)
    bodies = [chat_body("x" * chance.choice([1, 50, 1500]), stream=s) for s in (False, True)]
    for _ in range(10):
        body = chance.choice(bodies)
        data = request_of(body)
        with raw(server, data[: len(data) - (phase == 0)]) as connection:
            time.sleep(chance.random() * 0.05 * phase)
            if phase > 2:
                connection.settimeout(0.05)
                with suppress(OSError):
                    connection.recv(100)
            if chance.random() < 0.5:  # a reset instead of an orderly end
                pair = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pair)
    works(server)


def test_a_hundred_streams_that_are_cut() -> None:
    with running() as server:
        made = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for one in made:
            one.sendall(request_of(chat_body(LONG, stream=True)))
        eventually(lambda: server.requests == 100, "they were not begun")
        for one in made:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            one.close()
        eventually(lambda: server.requests == 0, "some go on")
        works(server)


def test_pages_are_free_within_a_step_of_the_end_of_a_client() -> None:
    with running() as server:
        core = server.client._engine.loaded.core
        with raw(server, request_of(chat_body(LONG, stream=True))) as connection:
            connection.recv(200)
            eventually(lambda: core._scheduler.num_running == 1, "it does not run")
        eventually(lambda: server.requests == 0, "it goes on")
        before = server.client.progress.rounds
        eventually(lambda: core._scheduler.num_running == 0, "its pages are held")
        assert server.client.progress.rounds - before <= 2
        works(server)


def test_pages_are_free_within_a_step_of_a_client_that_waits_for_a_whole_answer() -> None:
    with running() as server:
        with raw(server, request_of(chat_body(LONG))):
            eventually(lambda: server.requests == 1, "it was not begun")
        eventually(lambda: server.requests == 0, "it goes on")
        works(server)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HOSTILE: dict[str, bytes] = {
    "a header of 20 MB": GET + b"X-A: " + b"a" * (20 << 20) + b"\r\n\r\n",
    "10,000 headers": GET + b"".join(b"X-%d: a\r\n" % i for i in range(10_000)) + b"\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    b"Content-Length: 3\r\n\r\n{}",
    "length and chunks": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a negative length": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: -1\r\n\r\n{}",
    "a line break in a path": b"GET /health\rX HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header without a name": GET + b": a\r\n\r\n",
    "a space before the colon": GET + b"Content-Length : 5\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100,
    "no protocol": b"\0" * 1000,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "a huge chunk size": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffffffffffff\r\n{}",
    "a path of 100 kB": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown coding": request_of(b"{}", "Content-Encoding: br"),
    "a bomb of gzip": request_of(gzip.compress(b" " * (64 << 20)), "Content-Encoding: gzip"),
    "a length of 300 MB": request_of(b"", "X-A: a").replace(
        b"Content-Length: 0", b"Content-Length: 314572800"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_or_cut(server: Running, name: str) -> None:
    data = HOSTILE[name]
    with socket.create_connection(
        ("127.0.0.1", server.port), timeout=PATIENCE_SECONDS
    ) as connection:
        sender = threading.Thread(target=_send, args=(connection, data))
        sender.start()
        answer = b""
        with suppress(OSError):
            answer = connection.recv(1 << 16)
    sender.join(PATIENCE_SECONDS)
    assert not answer or 400 <= status_of(answer) < 500, answer[:200]
    assert server.call("GET", "/health").status == 200


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server has cut it
        connection.sendall(data)


def test_nothing_is_read_behind_a_request_with_two_lengths(server: Running) -> None:
    body = chat_body("a")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    both = request_of(b"", "Transfer-Encoding: chunked").replace(
        b"Content-Length: 0", b"Content-Length: %d" % len(chunks)
    )
    with raw(server, both + chunks + GET + b"\r\n") as client:
        said = everything(client)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1 ") == 1
    assert b"either Transfer-Encoding or Content-Length" in said


def test_requests_that_are_sent_ahead_are_answered_in_order(server: Running) -> None:
    first = request_of(json.dumps({"prompt": "one", "max_tokens": 2}).encode(), path="/completions")
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with raw(server, first + last) as connection:
        found = everything(connection)
    assert found.index(b"text_completion") < found.index(b'{"status":"ok"}')


def test_a_body_that_breaks_behind_its_answer_is_no_error_of_ours(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(server, GET + b"Transfer-Encoding: chunked\r\n\r\n") as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"no number\r\n")
        assert everything(client) == b""
    server.wait_alone()
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("ahead", [GET + b"\r\n", b"\r\n", GET])
def test_a_client_that_goes_after_it_has_sent_more_ends_its_answer(
    server: Running, ahead: bytes
) -> None:
    core = server.client._engine.loaded.core
    with raw(server, request_of(chat_body(LONG))) as connection:
        eventually(lambda: core._scheduler.num_running == 1, "it does not run")
        before = server.client.progress.rounds
        connection.sendall(ahead)
        time.sleep(0.05)  # the server has read it
    eventually(lambda: server.requests == 0, "it goes on")
    assert server.client.progress.rounds - before < 1000  # of 1,800
    works(server)


def test_what_is_sent_ahead_has_a_limit(server: Running) -> None:
    """Nobody can make the server keep much while an answer is computed."""
    core = server.client._engine.loaded.core
    with raw(server, request_of(chat_body("abcd" * 50))) as connection:
        eventually(lambda: core._scheduler.num_running == 1, "it does not run")
        connection.settimeout(0.2)
        sent = 0
        with frozen(), suppress(TimeoutError):
            while sent < 64 << 20:
                sent += connection.send(b"x" * (1 << 16))
        (protocol,) = server.server.server_state.connections
        assert len(protocol.conn.trailing_data[0]) < 1 << 20
    eventually(lambda: server.requests == 0, "it goes on")
    works(server)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)
FIELDS = (
    *("model", "messages", "prompt", "n", "temperature", "top_p", "max_tokens", "stop", "stream"),
    *("logit_bias", "seed", "logprobs", "top_logprobs", "tools", "tool_choice", "user", "priority"),
    *("stream_options", "response_format", "timeout", "cache_salt", "tokens", "echo", "best_of"),
)


@given(
    path=st.sampled_from([PATH, "/v1/completions", "/tokenize", "/detokenize"]),
    body=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=8),
)
@settings(
    max_examples=2 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_fields_make_the_server_fail(server: Running, path: str, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()  # with NaN and infinity, as Python writes them
    reply = server.call("POST", path, data, JSON)
    assert reply.status < 500, (body, reply.data)
    if reply.status >= 400:
        assert reply.error["message"]


TEXTS: dict[str, bytes] = {
    "deep lists": b'{"messages": ' + b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a long number": b'{"prompt": "a", "seed": ' + b"9" * 5_000_000 + b"}",
    "not a number": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "out of range": b'{"prompt": "a", "temperature": 1e999}',
    "half a surrogate": b'{"prompt": "\\ud800"}',
    "a wrong byte": b'{"prompt": "\xff"}',
    "zeros": b"\0" * 1000,
    "a list": b"[]",
    "nothing": b"",
    "the same key twice": b'{"prompt": "a", "prompt": ["b", 1]}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_requests(server: Running, name: str) -> None:
    for path in ("/v1/completions", PATH, "/tokenize"):
        reply = server.call("POST", path, TEXTS[name], JSON)
        assert reply.status == 400 and reply.error["message"], (path, reply.data[:200])


def test_a_byte_order_mark_and_zeros_in_texts(server: Running) -> None:
    reply = server.call("POST", "/v1/completions", b'{"prompt": "a\\u0000b"}', JSON)
    assert reply.json["choices"][0]["text"] == "a\0b"
    for coding in ("utf-8-sig", "utf-16"):  # Python's reader knows them
        data = '{"prompt": "a"}'.encode(coding)
        reply = server.call("POST", "/v1/completions", data, JSON)
        assert reply.json["choices"][0]["text"] == "a"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [[1], [256]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": "a", "logit_bias": {"256": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"9223372036854775808": 1}}, "logit_bias"),
        ({"prompt": "a", "max_tokens": -5}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2**63}, "max_tokens"),
        ({"prompt": "a", "n": 2**31}, "n"),
        ({"prompt": "a", "n": -1}, "n"),
        ({"prompt": "a", "best_of": 10**9}, "best_of"),
        ({"prompt": "a", "seed": 2**80}, "seed"),
    ],
)
def test_numbers_out_of_range(server: Running, body: dict[str, Any], param: str) -> None:
    reply = server.call("POST", "/v1/completions", body)
    assert reply.status == 400, reply.data
    assert param in (reply.error["param"] or "") or param in reply.error["message"]


def test_whitespace_is_a_prompt(server: Running) -> None:
    reply = server.call("POST", "/v1/completions", {"prompt": " \n\t "})
    assert reply.json["choices"][0]["text"] == " \n\t "


class Stalls:
    """The longest time that the event loop of a server was not free."""

    def __init__(self, server: Running) -> None:
        loop = server.server._loop
        assert loop is not None
        self._loop, self.worst, self._is_over, self._before = loop, 0.0, False, 0.0

    def __enter__(self) -> Stalls:
        self._loop.call_soon_threadsafe(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.05)
        self._is_over = True

    def _start(self) -> None:
        self._before = time.monotonic()
        self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        self.worst, self._before = max(self.worst, now - self._before), now
        if not self._is_over:
            self._loop.call_later(0.001, self._tick)


@pytest.mark.timing
@pytest.mark.parametrize("path", ["/v1/completions", PATH, "/tokenize", "/v1/embeddings"])
def test_a_prompt_of_8_mb_does_not_hold_up_the_server(server: Running, path: str) -> None:
    text = "some words " * ((8 << 20) // 11)
    body: dict[str, object] = {"input" if path == "/v1/embeddings" else "prompt": text}
    if path == PATH:
        body = {"messages": [{"role": "user", "content": text}]}
    data = json.dumps(body).encode()
    server.call("POST", path, data, JSON)  # what is loaded once
    worst = []
    for _ in range(3):  # what else runs on the machine does not hold it up each time
        with Stalls(server) as stalls:
            reply = server.call("POST", path, data, JSON)
        worst.append(stalls.worst)
        assert reply.status == 400, reply.data[:200]
        assert "maximum context length" in reply.error["message"]
    assert min(worst) < 0.5


@pytest.mark.timing
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_a_million_token_ids_do_not_hold_up_the_server(
    server: Running, path: str, field: str
) -> None:
    data = json.dumps({field: [1] * 1_000_000}).encode()
    worst = []
    for _ in range(3):
        with Stalls(server) as stalls:
            reply = server.call("POST", path, data, JSON)
        worst.append(stalls.worst)
        assert reply.status == 400 and "maximum context length" in reply.error["message"]
    assert min(worst) < 0.4
