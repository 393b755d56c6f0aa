"""`/debug/...`: there only when asked for; the trace is one that Perfetto opens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from chrome_trace import check_chrome_trace
from server_harness import JSON, Running, running
from threaded_harness import eventually

from mlc_llm.serve.server.app import DEBUG_ROUTES
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys

PATHS = [path for _, path, _ in DEBUG_ROUTES]


@pytest.fixture(scope="module")
def debugged() -> Iterator[Running]:
    with running(ServerSettings(port=0, debug=True)) as made:
        yield made


@pytest.mark.parametrize("path", PATHS)
def test_they_are_not_there_unless_enabled(server: Running, path: str) -> None:
    assert server.call("POST", path, {}).status == 404


@pytest.mark.parametrize("path", PATHS)
def test_they_need_a_key_and_a_known_model(path: str) -> None:
    with running(ServerSettings(port=0, debug=True, keys=read_keys(["a-key"], None))) as server:
        key = {"x-api-key": "a-key"}
        assert server.call("POST", path, {}).status == 401
        assert server.call("GET", path, None, key).status == 405
        if "cuda" not in path:
            assert server.call("POST", path, {"model": "other"}, key).status == 404
            assert server.call("POST", path, {"modle": "a"}, key).status == 400


def test_the_trace_of_requests_beside_each_other(debugged: Running) -> None:
    threads = [threading.Thread(target=debugged.chat, args=("a" * 20,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    debugged.wait_idle()
    for body in (None, {}, {"model": "default"}):
        reply = debugged.call("POST", "/debug/dump_event_trace", body)
        assert reply.status == 200 and reply.headers["x-dropped-events"] == "0"
        check_chrome_trace(reply.json)
    rows = {event["tid"] for event in reply.json}
    assert len(rows) >= 5 and all(row.startswith(("chatcmpl-", "metrics-")) for row in rows)
    names = {event["name"].split(" (")[0] for event in reply.json}
    assert {"request", "prefill", "decode", "request added to engine"} <= names


def test_the_numbers_of_the_engine(debugged: Running) -> None:
    debugged.chat("hello")
    found = debugged.call("POST", "/debug/dump_engine_metrics").json
    assert found["completion_tokens_sum"] >= 5
    assert found["serving"]["ended"]["stop"] >= 1


def test_a_reset_ends_requests_and_forgets(debugged: Running) -> None:
    connection = debugged.connect()
    body = {"messages": [{"role": "user", "content": "abc " * 500}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
    answer = connection.getresponse()
    answer.readline()
    assert debugged.call("POST", "/debug/reset_engine").json == {"status": "ok"}
    rest = answer.read()
    connection.close()
    assert b'"error"' in rest and b"[DONE]" not in rest
    debugged.wait_idle()
    path = "/debug/dump_engine_metrics"
    eventually(
        lambda: debugged.call("POST", path).json["serving"]["prefix_cache_sequences"] == 0,
        "the prefix cache remembers",
    )
    assert debugged.chat("hello").status == 200


def test_there_is_no_cuda(debugged: Running) -> None:
    reply = debugged.call("POST", "/debug/cuda_profiler_start")
    assert reply.status == 400 and "CPU" in reply.error["message"]
