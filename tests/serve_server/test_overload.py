"""More requests than a server can serve: who is refused, how, and that nobody else suffers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from server_harness import JSON, Reply, Running, running
from threaded_harness import PATIENCE_SECONDS, eventually, frozen, slow_steps

from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys

LONG = "abcd" * 450
PATH = "/v1/chat/completions"


def body_of(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


@contextmanager
def streaming(server: Running, text: str = LONG, **more: Any) -> Iterator[HTTPResponse]:
    """A streamed answer that has begun."""
    headers = more.pop("headers", {})
    connection = server.connect()
    connection.request("POST", PATH, body_of(text, stream=True, **more), {**JSON, **headers})
    reply = connection.getresponse()
    assert reply.status == 200
    reply.read(100)
    try:
        yield reply
    finally:
        connection.close()


@contextmanager
def begun_within(server: Running, seconds: float) -> Iterator[tuple[float, HTTPResponse]]:
    """A stream that begins before its timeout; on a slow machine, with a longer one."""
    with ExitStack() as stack:
        try:
            reply = stack.enter_context(streaming(server, timeout=seconds))
        except AssertionError:
            assert seconds < PATIENCE_SECONDS
            seconds, reply = stack.enter_context(begun_within(server, 3 * seconds))
        yield seconds, reply


class Asking:
    """Requests in threads of their own."""

    def __init__(self, server: Running) -> None:
        self.replies: list[tuple[str, Reply]] = []
        self._ended: list[str] = []
        self._server, self._threads = server, list[threading.Thread]()
        server.context.watchers.append(lambda note: self._ended.append(note.request_id))

    def chat(self, name: str, text: str = "x", headers: Any = None, **more: Any) -> None:
        def work() -> None:
            named = {**JSON, "x-request-id": name, **(headers or {})}
            reply = self._server.call("POST", PATH, body_of(text, **more), named)
            self.replies.append((name, reply))

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()

    @property
    def order(self) -> list[str]:
        """In which the server ended them; the threads here may hear of it in another one."""
        names = {name for name, _ in self.replies}
        return [name for name in self._ended if name in names]

    @property
    def statuses(self) -> list[int]:
        return [reply.status for _, reply in self.replies]


def waiting(server: Running, count: int) -> None:
    turns = server.context.models.default.turns
    assert turns is not None
    eventually(lambda: turns.num_waiting == count, f"there are not {count} that wait")


def test_exactly_one_beyond_the_limit_is_refused() -> None:
    settings = ServerSettings(port=0, limits=Limits(queue=3))
    texts = [f"text {i}" for i in range(5)]
    with running(settings, sequences=2) as server, Asking(server) as asking:
        with frozen():
            for i, text in enumerate(texts):
                asking.chat(str(i), text)
                eventually(lambda i=i: server.context.admission.answers == i + 1, "not inside")  # type: ignore[misc]
            refused = server.chat("one more")  # it does not wait for the others
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
    found = {name: reply.json["choices"][0]["message"]["content"] for name, reply in asking.replies}
    assert found == {str(i): text for i, text in enumerate(texts)}
    assert server.context.admission.refused == 1


def test_n_counts_as_n() -> None:
    settings = ServerSettings(port=0, limits=Limits(queue=1))
    with running(settings, sequences=3) as server:
        with Asking(server) as asking, streaming(server, n=3), frozen():
            assert server.chat("a", n=2).status == 503
            asking.chat("one", "a")
            waiting(server, 1)
        server.wait_idle()
        assert asking.statuses == [200]
        reply = server.chat("a", n=5)
        assert reply.status == 400 and "5 answers" in reply.error["message"]


def test_a_turn_that_does_not_come_in_time() -> None:
    settings = ServerSettings(port=0, limits=Limits(wait_s=0.2))
    with running(settings, sequences=1) as server, streaming(server):
        with frozen():
            reply = server.chat("a")
        assert reply.status == 503 and "retry-after" in reply.headers
        assert "turn" in reply.error["message"]
        waiting(server, 0)
        eventually(lambda: server.requests == 1, "it is still there")
        assert server.context.admission.answers == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout_in_the_queue(stream: bool) -> None:
    with running(sequences=1) as server, streaming(server):
        with frozen():
            reply = server.chat("a", timeout=0.2, stream=stream)
            headers = {**JSON, "x-request-timeout": "0.2"}
            assert server.call("POST", PATH, body_of("a"), headers).status == 408
        assert reply.status == 408 and reply.error["code"] == "timeout"
        assert reply.headers["x-should-retry"] == "false"
        waiting(server, 0)
        eventually(lambda: server.requests == 1, "it is still there")


def test_a_timeout_while_it_runs() -> None:
    with running() as server:
        with frozen():
            assert server.chat("a", timeout=0.1).status == 408
        with begun_within(server, 0.4) as (seconds, reply), frozen():
            last = reply.read().decode().strip().split("\n\n")[-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "timeout" and f"{seconds:g} s" in error["message"]
        server.wait_idle()
        assert server.chat("a", timeout=60).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("timeout", 0), ("timeout", -1), ("timeout", "a"), ("timeout", 1e9), ("priority", 11)],
)
def test_wrong_orders_are_refused(server: Running, field: str, value: Any) -> None:
    reply = server.chat("a", **{field: value})
    assert reply.status == 400 and reply.error["param"] == field
    assert server.call("POST", PATH, body_of("a"), {**JSON, "x-priority": "high"}).status == 400


def test_orders_are_no_unknown_fields(server: Running) -> None:
    reply = server.chat("a", timeout=60, priority=-3, cache_salt="x")
    assert reply.status == 200 and "x-ignored-params" not in reply.headers


def test_a_stream_in_the_queue_gets_signs_of_life() -> None:
    """The first one not later than all others: uvicorn keeps the head until something follows."""
    settings = ServerSettings(port=0, limits=Limits(ping_s=1.0, wait_s=1.9))
    with running(settings, sequences=1) as server, streaming(server), frozen():
        reply = server.chat("a", stream=True)
        assert reply.status == 200 and reply.data.startswith(b": ping\n\n")
        last = reply.data.decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "overloaded"


def test_a_client_that_goes_leaves_the_queue() -> None:
    with running(sequences=1) as server, streaming(server):
        with frozen():
            connection = server.connect()
            connection.request("POST", PATH, body_of("a"), JSON)
            waiting(server, 1)
            connection.close()
            waiting(server, 0)
        eventually(lambda: server.requests == 1, "it is still there")


def keys(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    return read_keys([], file)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_one_key_cannot_take_all_places(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, keys=keys(tmp_path, "one\ntwo\n"), limits=Limits(queue=3))
    with running(settings, sequences=1) as server:  # four places, so two for a key
        with Asking(server) as asking, streaming(server, headers=bearer("one")), frozen():
            asking.chat("1", "a", headers=bearer("one"))
            waiting(server, 1)
            refused = server.call("POST", PATH, body_of("a"), {**JSON, **bearer("one")})
            assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.error["code"] == "key_limit"
            asking.chat("2", "b", headers=bearer("two"))
            waiting(server, 2)
        assert asking.statuses == [200, 200]


def test_a_key_that_floods_does_not_starve_another(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, keys=keys(tmp_path, "flood\ncalm\n"))
    with (
        running(settings, sequences=1) as server,
        Asking(server) as asking,
        streaming(server, headers=bearer("flood")),
        frozen(),
    ):
        for i in range(10):
            asking.chat(f"f{i}", "x" * 20, headers=bearer("flood"))
        waiting(server, 10)
        asking.chat("calm", "x" * 20, headers=bearer("calm"))
        waiting(server, 11)
    assert asking.statuses == [200] * 11 and asking.order.index("calm") <= 2


def test_priorities_within_a_key() -> None:
    with running(sequences=1) as server, Asking(server) as asking, streaming(server), frozen():
        for name, priority in (("later", 5), ("usual", 0), ("urgent", -5)):
            asking.chat(name, "x" * 20, priority=priority)
        waiting(server, 3)
    assert asking.order == ["urgent", "usual", "later"]


def rss_mb() -> float:
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def test_tenfold_overload_is_refused_and_forgotten() -> None:
    settings = ServerSettings(port=0, limits=Limits(queue=2))
    with running(settings, sequences=2) as server:
        statuses = list[int]()

        def flood() -> None:
            for _ in range(10):
                statuses.append(server.chat("x" * 50).status)

        server.chat("warm")
        before = rss_mb()
        threads = [threading.Thread(target=flood) for _ in range(40)]
        with frozen():
            for thread in threads:
                thread.start()
            eventually(lambda: server.context.admission.refused >= 36, "they are not refused")
        while any(thread.is_alive() for thread in threads):
            assert server.call("GET", "/health").status == 200
        server.wait_idle()
        assert set(statuses) == {200, 503}
        assert statuses.count(200) + server.context.admission.refused == len(statuses)
        assert rss_mb() - before < 100
        assert server.chat("still here").status == 200


def test_large_prompts_begin_while_others_answer() -> None:
    with slow_steps(0.01), running(sequences=3) as server, streaming(server), streaming(server):
        assert server.requests == 2
        with streaming(server):
            assert server.requests == 3


def cached_tokens(server: Running, key: str, **more: Any) -> int:
    reply = server.call("POST", PATH, body_of("x" * 64, **more), {**JSON, **bearer(key)})
    found: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_keys_do_not_share_what_is_computed_of_their_prompts(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, keys=keys(tmp_path, "one\ntwo\n"))
    with running(settings) as server:
        assert [cached_tokens(server, key) for key in ("one", "two")] == [0, 0]
        assert [cached_tokens(server, key) for key in ("one", "two")] == [63, 63]
        assert cached_tokens(server, "one", cache_salt="a") == 0
        assert cached_tokens(server, "one", cache_salt="a") == 63


def test_metrics_count_those_who_wait_for_their_turn() -> None:
    with (
        slow_steps(0.01),
        running(sequences=1) as server,
        Asking(server) as asking,
        streaming(server),
    ):
        for name in "ab":
            asking.chat(name)
        waiting(server, 2)
        lines = server.call("GET", "/metrics").data.decode().splitlines()
        found = [line for line in lines if line.startswith("vllm:num_requests_waiting")]
        assert len(found) == 1 and found[0].endswith(" 2")
