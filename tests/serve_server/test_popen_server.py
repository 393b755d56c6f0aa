"""The server as a process: it starts, says why it does not, and ends in every case."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from threaded_harness import watched

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.serve import EngineConfig, PopenServer
from mlc_llm.serve.config import EngineMode

SECONDS = 360.0


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process takes longer to start than the tests beside this one."""
    with watched(request.config, SECONDS):
        yield


def ask(port: int, text: str, **more: Any) -> tuple[int, Any]:
    body = {"messages": [{"role": "user", "content": text}], **more}
    return post(port, "/v1/chat/completions", body)


def post(port: int, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def until_closed(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) != 0:
                return
        assert time.monotonic() < end, "the server goes on"
        time.sleep(0.05)


def test_it_serves_and_ends() -> None:
    config = EngineConfig(max_single_sequence_length=100, max_num_sequence=2)
    server = PopenServer("mock://echo", "cpu", engine_config=config, port=0, enable_tracing=True)
    with server as started:
        assert started is server
        assert server.openai_v1_base_url == f"{server.base_url}/v1"
        status, body = ask(server.port, "hello", debug_config={"ignore_eos": True})
        assert (status, body["choices"][0]["message"]["content"]) == (200, "hello")
        status, events = post(server.port, "/debug/dump_event_trace", {})
        assert status == 200 and "request added to engine (0)" in [one["name"] for one in events]
        status, body = ask(server.port, "x" * 200)
        assert "maximum context length is 100 tokens" in body["error"]["message"]
        with pytest.raises(MLCError, match="started already"):
            server.start()
        with pytest.raises(InvalidField, match=f"port = {server.port}"):
            PopenServer("mock://echo", port=server.port).start()
    until_closed(server.port)
    server.terminate()
    server.start()  # again, on the same port
    assert ask(server.port, "again")[0] == 200
    server.terminate()


def test_it_ends_after_an_error_in_the_block_and_after_its_own_crash() -> None:
    with pytest.raises(ZeroDivisionError), PopenServer("mock://echo", port=0) as server:
        _ = 1 // 0
    until_closed(server.port)
    with PopenServer("mock://echo", port=0) as server:
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
    until_closed(server.port)


def test_it_ends_with_the_program_that_started_it() -> None:
    program = (
        "import os, signal; from mlc_llm.serve import PopenServer\n"
        "server = PopenServer('mock://echo', port=0); server.start()\n"
        "print(server.port, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    until_closed(int(done.stdout))


def test_a_server_that_cannot_start_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(MLCError, match="ended with exit code 2 before it was ready"):
        PopenServer(str(tmp_path / "missing.gguf"), port=0).start()
    with pytest.raises(MLCError, match="not ready in time"):
        PopenServer("mock://echo", port=0).start(timeout=0.0)


@pytest.mark.parametrize("mode", ["local", "interactive", "server"])
def test_arguments_that_contradict_are_refused(mode: EngineMode) -> None:
    with pytest.raises(InvalidField, match="enable_tracing"):
        PopenServer("mock://echo", enable_debug=False, enable_tracing=True)
    other = "server" if mode == "local" else "local"
    with pytest.raises(InvalidField, match=r"engine_config\.mode"):
        PopenServer("mock://echo", mode=mode, engine_config={"mode": other})
    with pytest.raises(InvalidField, match="max_num_sequences"):
        PopenServer("mock://echo", engine_config={"max_num_sequences": 1})
    with pytest.raises(TypeError, match="model_lib_path"):
        PopenServer("mock://echo", model_lib_path="x")  # type: ignore[call-arg]
