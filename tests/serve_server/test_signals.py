"""How a server ends, and what it reads again: signals to a process of its own, in every phase."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from server_process import FROZEN, JSON, SECONDS, Process, serving, until

TEXT = "abcd" * 450
SOON = "import mlc_llm.serve.server.pool.registry as registry\nregistry.END_S = 0.5"
"""An engine that never moves again is not waited for as long as usual."""


SIGNALLED_WHILE_IT_SAYS_SO = """
import io, os, signal, sys
class Raw(io.RawIOBase):
    def writable(self): return True
    def fileno(self): return 2
    def write(self, data):
        if b"http://" in bytes(data): os.kill(os.getpid(), signal.SIGTERM)
        return os.write(2, data)
sys.stderr = io.TextIOWrapper(io.BufferedWriter(Raw()), write_through=True)
"""
"""The signal comes while standard error is being written, which nothing else may write then."""


def read_all(reply: HTTPResponse, into: list[bytes]) -> threading.Thread:
    thread = threading.Thread(target=lambda: into.append(reply.read()))
    thread.start()
    return thread


def last_event(data: bytes) -> str:
    return data.decode().strip().split("\n\n")[-1].removeprefix("data: ")


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(one: signal.Signals) -> None:
    with serving() as server:
        server.process.send_signal(one)
        assert server.end() == 0


def test_a_signal_while_the_server_says_where_it_is() -> None:
    with serving(more=SIGNALLED_WHILE_IT_SAYS_SO) as server:
        assert server.end() == 0


def test_the_first_signal_lets_answers_end_and_takes_no_more() -> None:
    with serving() as server:
        reply, found = server.ask(TEXT, stream=True), list[bytes]()
        reply.read(100)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready")[0] == 503, "it is still ready")
        assert server.get("/ready")[1]["error"]["code"] == "draining"
        assert server.get("/health") == (200, {"status": "ok"})
        refused = server.ask("more")
        assert refused.status == 503 and refused.getheader("retry-after") is not None
        read_all(reply, found).join()
        assert last_event(found[0]) == "[DONE]"
        assert server.end() == 0


@pytest.mark.parametrize(("one", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_answers(one: signal.Signals, code: int) -> None:
    with serving(step_s=0.05) as server:
        reply, found = server.ask(TEXT, stream=True), list[bytes]()
        reply.read(100)
        server.process.send_signal(one)
        until(lambda: server.get("/ready")[0] == 503, "it is still ready")
        reader = read_all(reply, found)
        server.process.send_signal(one)
        assert server.end() == code
        reader.join()
        assert json.loads(last_event(found[0]))["error"]["code"] == "server_ended"


def test_answers_that_do_not_end_in_time_are_ended() -> None:
    with serving("--drain-seconds", "0.5", step_s=0.05) as server:
        reply, found = server.ask(TEXT, stream=True), list[bytes]()
        reply.read(100)
        reader = read_all(reply, found)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 143
        reader.join()
        assert json.loads(last_event(found[0]))["error"]["code"] == "server_ended"


def test_a_whole_answer_and_a_queued_one_end_with_an_error() -> None:
    with serving("--drain-seconds", "0.5", step_s=0.05) as server:
        codes: list[str] = []

        def ask() -> None:
            codes.append(json.loads(server.ask(TEXT).read())["error"]["code"])

        threads = [threading.Thread(target=ask) for _ in range(40)]  # 32 run at a time
        for thread in threads:
            thread.start()
        server.until_it_has(40)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 143
        for thread in threads:
            thread.join()
        assert set(codes) == {"server_ended"} and len(codes) == 40


def test_a_signal_while_a_model_is_opened() -> None:
    slow = """
from mlc_llm.serve.server.pool.openers import EngineOpener
usual_open = EngineOpener.open
def slow_open(self, model, plan, done=[]):
    if done:
        time.sleep(600)
    done.append(model)
    return usual_open(self, model, plan)
EngineOpener.open = slow_open
"""
    models = ("a=mock://echo", "b=mock://echo")
    with serving("--drain-seconds", "0.5", models=models, more=slow) as server:
        codes: list[str] = []
        thread = threading.Thread(
            target=lambda: codes.append(
                json.loads(server.ask("x", model="b").read())["error"]["code"]
            )
        )
        thread.start()
        until(lambda: server.get("/v1/models/b")[1]["state"] == "opening", "it is not opened")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 143
        thread.join()
        assert codes == ["server_ended"]


def test_a_signal_before_the_server_listens() -> None:
    code = "import time; print('up', flush=True)\n" + (
        "from mlc_llm.serve.server.pool.openers import EngineOpener\n"
        "EngineOpener.open = lambda *a: (print('opening', flush=True), time.sleep(600))\n"
        "from mlc_llm.cli.__main__ import main\nraise SystemExit(main(['serve', '--port', '0', 'mock://echo']))"
    )
    for one in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            while "opening" not in process.stdout.readline():
                pass
            process.send_signal(one)
            assert process.wait(SECONDS) in (-signal.SIGTERM, 130)
            assert "Traceback" not in process.stderr.read()


def test_a_frozen_engine_does_not_keep_the_process() -> None:
    with serving("--drain-seconds", "0.5", more=SOON) as server:
        replies: list[HTTPResponse] = []
        thread = threading.Thread(target=lambda: replies.append(server.ask(FROZEN)))
        thread.start()
        server.until_it_has(1)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 143
        thread.join()
        assert replies[0].status == 503


def test_exit_for_a_supervisor() -> None:
    with serving("--stall-seconds", "1", "--on-stall", "exit", more=SOON) as server:
        reply = server.ask(FROZEN)
        assert reply.status == 503
        assert json.loads(reply.read())["error"]["code"] == "engine_stalled"
        assert server.end() == 70


def status(server: Process, key: str) -> int:
    connection = server.connect()
    connection.request("GET", "/v1/models", headers={**JSON, "x-api-key": key})
    found = connection.getresponse().status
    connection.close()
    return found


def test_sighup_reads_keys_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    with serving("--api-key-file", str(file)) as server:
        assert [status(server, key) for key in ("old", "new")] == [200, 401]
        file.write_text("new\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: status(server, "new") == 200, "the key is not known")
        assert status(server, "old") == 401
        file.write_text("# nothing\n")  # cannot be used, so all stays as it is
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("stay as they were" in line for line in server.said), "it says nothing")
        assert status(server, "new") == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert not any("old" in line.split() or "new" in line.split() for line in server.said)


@pytest.fixture
def heard_hangup() -> Iterator[None]:
    """Servers inherit what their parent ignores, and `nohup` ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard_hangup")
def test_sighup_without_files_ends_the_server() -> None:
    with serving() as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.end() == -signal.SIGHUP
