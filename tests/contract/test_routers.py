"""vLLM's and SGLang's routers in front of two of our servers, each a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

openai: Any = pytest.importorskip("openai", reason="needs `pip install openai`")

NAME = "echo"
LONGEST_S = 60
TEXTS = [letter * 500 for letter in "abcdef"]


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def get(port: int, path: str) -> tuple[int, Any]:
    """The status and the body, as JSON if it is an object. Status 0: nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        found = connection.getresponse()
        data = found.read()
        return found.status, json.loads(data) if data.startswith(b"{") else data.decode()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def wait_for(what: str, process: subprocess.Popen[bytes], check: Any) -> None:
    end = time.monotonic() + LONGEST_S
    while not check():
        assert process.poll() is None, f"{what} has ended"
        assert time.monotonic() < end, f"{what} is not ready"
        time.sleep(0.1)


@contextmanager
def started(command: Sequence[str], end: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env=dict(os.environ)) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(end)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


class Server:
    """One of ours."""

    def __init__(self, held: ExitStack) -> None:
        self.port, self.events, self.replay = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "mlc_llm", "serve", "mock://echo"]
        command += ["--port", str(self.port), "--served-model-name", NAME, "--log-format", "off"]
        command += ["--kv-events", f"tcp://127.0.0.1:{self.events}"]
        command += ["--kv-events-replay", f"tcp://127.0.0.1:{self.replay}"]
        self.process = held.enter_context(started(command))
        wait_for("a server", self.process, lambda: get(self.port, "/ready")[0] == 200)

    @property
    def answers(self) -> float:
        """Requests that it has answered."""
        text = get(self.port, "/metrics")[1]
        lines = [one for one in text.splitlines() if one.startswith("vllm:request_success_total")]
        return sum(float(one.rpartition(" ")[2]) for one in lines)


class Router:
    """A router before the servers."""

    def __init__(self, kind: str, policy: str, servers: Sequence[Server], held: ExitStack) -> None:
        self.port, metrics = free_ports(2)
        place = Path(openai.__file__).parents[4] / "bin"
        command = [str(place / f"{kind}-router"), *(["launch"] if kind == "sglang" else [])]
        command += ["--worker-urls", *(one.url for one in servers), "--policy", policy]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--prometheus-port", str(metrics)]
        command += ["--log-level", "warning" if kind == "vllm" else "warn"]
        command += ["--health-check-interval-secs", "1", "--health-check-timeout-secs", "2"]
        if policy == "kv_aware":
            command += ["--kv-event-block-size", "64", "--kv-event-model", NAME]
            for one in servers:
                command += ["--kv-event-source", f"{one.url}=tcp://127.0.0.1:{one.events}"]
                command += ["--kv-event-replay-source", f"{one.url}=tcp://127.0.0.1:{one.replay}"]
        self.process = held.enter_context(started(command))
        wait_for("the router", self.process, self._is_ready)
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=3
        )
        held.callback(self.client.close)

    def _is_ready(self) -> bool:
        status, body = get(self.port, "/v1/models")
        return status == 200 and [one["id"] for one in body["data"]] == [NAME]

    def ask(self, text: str) -> int:
        """A whole chat. Returns the tokens of its prompt that a prefix cache had."""
        found = self.client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": text}], max_tokens=4
        )
        assert found.choices[0].message.content == text[:4]
        details = found.usage.prompt_tokens_details
        return details.cached_tokens or 0


ROUTERS = [("vllm", "cache_aware"), ("vllm", "kv_aware"), ("sglang", "cache_aware")]


@pytest.fixture(params=ROUTERS, ids="-".join)
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Router, list[Server]]]:
    with ExitStack() as held:
        servers = [Server(held), Server(held)]
        yield Router(*request.param, servers, held), servers


def test_a_router_before_two_servers(both: tuple[Router, list[Server]]) -> None:
    router, servers = both
    assert get(router.port, "/health")[0] == 200
    assert [one.id for one in router.client.models.list()] == [NAME]
    stream = router.client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "one two three"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert text == "one two three"
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == 13
    _finds_what_is_cached(router)
    _lives_on_when_a_server_dies(router, servers)


def _finds_what_is_cached(router: Router) -> None:
    """Prompts go where their beginning is. The second and the third time, nearly all of it is
    there."""
    for text in TEXTS:
        router.ask(text)
    again = [router.ask(text) for text in TEXTS * 2]
    assert sum(cached >= 448 for cached in again) == len(again), again


def _lives_on_when_a_server_dies(router: Router, servers: list[Server]) -> None:
    servers[0].process.kill()
    servers[0].process.wait()
    before = servers[1].answers
    for number in range(12):
        router.ask(f"{number} after the other one has died")
    assert servers[1].answers == before + 12


def test_power_of_two_reads_the_load_of_servers() -> None:
    with ExitStack() as held:
        servers = [Server(held), Server(held)]
        router = Router("sglang", "power_of_two", servers, held)
        status, found = get(router.port, "/get_loads")
        assert status == 200
        assert [one["load"] for one in found["workers"]] == [0, 0]
