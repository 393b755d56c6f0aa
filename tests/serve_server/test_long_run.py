"""A server that is used for long: what requests take is bounded, and given back."""

from __future__ import annotations

import http.client
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from server_process import JSON, Process, serving
from threaded_harness import eventually

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
FEW, MANY = 120, 600
POOLS = 14
"""Threads that are made when they are first needed, and stay."""
LARGEST_MB = 400
"""Of one request, beyond what the server takes alone."""


def facts(server: Process) -> dict[str, int]:
    """Memory in MB, threads and open files of the process."""
    own = Path(f"/proc/{server.process.pid}")
    status = (own / "status").read_text()
    memory = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "mb": int(memory) >> 10,
        "threads": len(list((own / "task").iterdir())),
        "files": len(list((own / "fd").iterdir())),
    }


def numbers(server: Process) -> dict[str, Any]:
    connection = server.connect()
    connection.request("POST", "/debug/dump_engine_metrics")
    found = json.loads(connection.getresponse().read())
    connection.close()
    serving_numbers: dict[str, Any] = found["serving"]
    return serving_numbers


def one_request(server: Process, rng: random.Random) -> None:
    """A request that is whole, streamed, broken, or cancelled in the middle."""
    kind = rng.choice(["whole", "stream", "broken", "wrong", "cancel", "cancel early", "tokens"])
    text = "".join(rng.choices("abcdefgh ", k=rng.randrange(1, 300)))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "n": rng.choice([1, 2]),
    }
    data = json.dumps(body if kind != "wrong" else {**body, "temperature": -1})
    connection = server.connect()
    try:
        if kind == "tokens":
            connection.request("POST", "/tokenize", json.dumps({"prompt": text}), JSON)
        else:
            connection.request("POST", CHAT, data[: -5 if kind == "broken" else None], JSON)
        if kind != "cancel early":
            answer = connection.getresponse()
            if kind == "cancel":
                answer.read(rng.randrange(1, 500))
                answer.close()
            else:
                answer.read()
                assert answer.status == {"broken": 400, "wrong": 400}.get(kind, 200)
    finally:
        connection.close()


def many_requests(server: Process, count: int, seed: int) -> None:
    errors: list[BaseException] = []

    def some(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        try:
            for _ in range(count // 8):
                one_request(server, rng)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=some, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    eventually(lambda: is_idle(server), "a request goes on", 60)


def is_idle(server: Process) -> bool:
    found = numbers(server)
    return found["num_requests_running"] == found["num_requests_waiting"] == 0


@pytest.mark.parametrize("form", ["json"])
def test_thousands_of_requests_leave_nothing_behind(form: str) -> None:
    # The recorder of traces keeps events, so it is off; numbers need the debug routes.
    more = "from mlc_llm.serve.event_trace_recorder import EventTraceRecorder\n"
    more += "EventTraceRecorder.add_event = lambda self, *_: None\n"
    flags = ("--enable-debug", "--log-format", form)
    with serving(*flags, step_s=0.0, more=more) as server:
        many_requests(server, FEW, 1)
        before = facts(server)
        many_requests(server, MANY, 2)
        after = facts(server)
        assert after["mb"] <= before["mb"] * 1.05 + 8, (before, after)
        assert after["threads"] <= before["threads"] + POOLS, (before, after)
        assert after["files"] <= before["files"] + 2, (before, after)
        ended = numbers(server)["ended"]
        assert sum(ended.values()) > MANY // 4 and ended["error"] == 0
        connection = server.connect()
        connection.request("POST", "/debug/reset_engine")
        connection.getresponse().read()
        connection.close()
        eventually(lambda: numbers(server)["kv_pages_used"] == 0, "a page is lost", 30)
        server.process.terminate()
        assert server.end() == 0


def test_a_request_with_all_that_is_allowed_takes_bounded_memory() -> None:
    with serving("--enable-debug", step_s=0.0) as server:
        server.ask("warm", n=4, logprobs=True, top_logprobs=20).read()
        before = facts(server)
        most = {"mb": 0}
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.02):
                most["mb"] = max(most["mb"], facts(server)["mb"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for stream in (False, True):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
                body = {
                    "messages": [{"role": "user", "content": "a" * 200}],
                    "n": 128, "max_tokens": 200 if stream else 97,
                    "logprobs": True, "top_logprobs": 20, "stream": stream,
                }  # fmt: skip
                connection.request("POST", CHAT, json.dumps(body), JSON)
                answer = connection.getresponse()
                assert answer.status == 200
                while answer.read(1 << 16):
                    pass
                connection.close()
        finally:
            stop.set()
            watcher.join()
        print(f"the server alone: {before['mb']} MB; at most {most['mb']} MB")
        assert most["mb"] - before["mb"] < LARGEST_MB
        server.process.terminate()
        assert server.end() == 0
