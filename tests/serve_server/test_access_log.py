"""One line a request: who asked for what, how long it took, how it ended. Never what was said."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from server_harness import JSON, Running, running
from server_process import SECONDS, serving, until
from threaded_harness import eventually, frozen

from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys
from mlc_llm.serve.server.notes import access_log
from mlc_llm.support.log_thread import ThreadHandler
from mlc_llm.support.logging import ACCESS, LOGGER_NAME, TEXT, set_up, set_up_access

SECRET = "the-word-that-nobody-may-read"
KEYS = ("first-key", "second-key")
FIELDS = {
    "time", "level", "logger", "message", "id", "answer", "method", "route", "status", "code",
    "model", "key", "key_name", "tokens_in", "tokens_cached", "tokens_out", "ttft_s", "duration_s",
    "finish_reason", "ignored_fields", "aborted",
}  # fmt: skip


class Lines:
    """What is written to standard error."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture, self._text = capture, ""

    def getvalue(self) -> str:
        self._text += self._capture.readouterr().err
        return self._text

    def last(self, count: int = 1) -> list[dict[str, Any]]:
        eventually(lambda: len(self.getvalue().splitlines()) >= count, "a line is missing")
        return [json.loads(line) for line in self.getvalue().splitlines()[-count:]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    logger, access = logging.getLogger(LOGGER_NAME), logging.getLogger(ACCESS)
    before = [(one, one.handlers[:], one.level, one.propagate) for one in (logger, access)]
    logger.handlers = []
    set_up()
    set_up_access("json")
    yield Lines(capsys)
    for one, handlers, level, propagate in before:
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with running(ServerSettings(port=0, keys=read_keys(KEYS, None))) as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: Running, headers: dict[str, str], **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": SECRET}], **more}
    return server.call("POST", "/v1/chat/completions", body, headers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_of_a_chat(keyed: Running, lines: Lines, stream: bool) -> None:
    headers = {**bearer(KEYS[1]), "x-request-id": "mine-1"}
    reply = ask(keyed, headers, stream=stream, max_tokens=4)
    assert reply.status == 200 and reply.headers["x-request-id"] == "mine-1"
    (line,) = lines.last()
    assert set(line) == FIELDS
    assert line["id"] == "mine-1" and line["answer"].startswith("chatcmpl-")
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (line["model"], line["key"], line["code"]) == ("mock://echo", 2, None)
    assert (line["tokens_in"], line["tokens_out"]) == (len(SECRET), 4)
    assert 0 < line["ttft_s"] <= line["duration_s"]
    assert (line["finish_reason"], line["aborted"]) == ("length", False)
    assert SECRET not in lines.getvalue() and not any(key in lines.getvalue() for key in KEYS)


def test_a_line_of_what_is_refused(keyed: Running, lines: Lines) -> None:
    assert ask(keyed, bearer("wrong-" + SECRET)).status == 401
    assert ask(keyed, bearer(KEYS[0]), model="no-model").status == 404
    assert ask(keyed, bearer(KEYS[0]), temperature=-1).status == 400
    assert keyed.call("GET", f"/{SECRET}?q={SECRET}", headers=bearer(KEYS[0])).status == 404
    found = lines.last(4)
    assert [one["status"] for one in found] == [401, 404, 400, 404]
    assert [one["key"] for one in found] == [None, 1, 1, 1]
    assert [one["code"] for one in found][:2] == ["invalid_api_key", "model_not_found"]
    # A path that is no route may have anything in it, so it is not written down.
    assert found[3]["route"] == "unknown"
    assert SECRET not in lines.getvalue()


def test_a_client_that_leaves_is_named_so(keyed: Running, lines: Lines) -> None:
    for stream in (True, False):
        connection = keyed.connect()
        body = {"messages": [{"role": "user", "content": "abc " * 500}], "stream": stream}
        headers = {**JSON, **bearer(KEYS[0])}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        if stream:
            connection.getresponse().readline()
        else:
            eventually(lambda: keyed.requests == 1, "the request did not begin")
        connection.close()
        keyed.wait_idle()
    streamed, whole = lines.last(2)
    assert (streamed["status"], streamed["aborted"]) == (200, True)
    assert (whole["status"], whole["aborted"]) == (499, True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_tokens_of_an_answer_that_its_client_has_left_are_counted(
    keyed: Running, lines: Lines, path: str
) -> None:
    """All that the engine has computed, also behind what the client has read."""
    prompts = ["abc " * 500, "abd " * 400]
    body: dict[str, Any] = {"prompt": prompts, "stream": True}
    if path != "/v1/completions":
        prompts = prompts[:1]
        body = {"messages": [{"role": "user", "content": prompts[0]}], "stream": True}
    before = engine_tokens(keyed)
    connection = keyed.connect()
    connection.request("POST", path, json.dumps(body), {**JSON, **bearer(KEYS[0])})
    connection.getresponse().read(2000)
    with frozen():  # the engine is in a step when the client leaves
        connection.close()
        eventually(lambda: not keyed.context.models.default.readers, "it goes on")
    keyed.wait_alone()
    (line,) = (one for one in lines.last(2) if one["route"] == path)
    made = {name: after - before[name] for name, after in engine_tokens(keyed).items()}
    assert line["aborted"] and line["finish_reason"] == "abort"
    assert line["tokens_in"] == sum(map(len, prompts)) == made["prompt"]
    assert line["tokens_out"] == made["completion"] > 0


def engine_tokens(server: Running) -> dict[str, int]:
    """Of all requests that have ended."""
    metrics = server.client._engine.loaded.core.metrics()
    return {name: int(metrics[f"{name}_tokens_sum"]) for name in ("prompt", "completion")}


@pytest.mark.parametrize("hangs", [True, False])
def test_a_client_that_leaves_before_the_first_token(
    keyed: Running, lines: Lines, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Its line waits for the engine, but for a while only: the engine may hang."""
    core = keyed.client._engine.loaded.core
    if hangs:
        monkeypatch.setattr(access_log, "COUNT_S", 0.01)
    with frozen():
        connection = keyed.connect()
        body = {"prompt": "xyz", "stream": True}
        headers = {**JSON, **bearer(KEYS[0])}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        eventually(lambda: core._scheduler.num_running == 1, "it does not run")
        connection.close()
        eventually(lambda: not keyed.context.models.default.readers, "it goes on")
        found = lines.last() if hangs else []
    (line,) = found or lines.last()
    assert line["aborted"] and line["ttft_s"] is None
    assert line["tokens_in"] == (0 if hangs else 3)
    keyed.wait_alone()


def test_a_stream_that_ends_with_an_error_is_named_so(keyed: Running, lines: Lines) -> None:
    """Its status is that of its beginning, so the code alone tells it from a whole answer."""
    headers = {**bearer(KEYS[0]), "x-request-timeout": "0.2"}
    with frozen():
        assert b'"timeout"' in ask(keyed, headers, stream=True).data
    (line,) = lines.last()
    assert (line["status"], line["code"], line["aborted"]) == (200, "timeout", False)
    assert line["tokens_in"] == len(SECRET)


def test_a_route_is_named_without_what_its_path_holds(keyed: Running, lines: Lines) -> None:
    reply = keyed.call("GET", f"/v1/models/{SECRET}", headers=bearer(KEYS[0]))
    assert reply.status == 404
    assert lines.last()[0]["route"] == "/v1/models/{model:path}"
    assert SECRET not in lines.getvalue()


@pytest.mark.parametrize("given", ["a" * 129, "a\tb", "", "é", "a status=500"])
def test_odd_ids_of_requests_are_replaced(keyed: Running, lines: Lines, given: str) -> None:
    headers = {**bearer(KEYS[0]), "x-request-id": given}
    reply = keyed.call("GET", "/health", headers=headers)
    assert reply.headers["x-request-id"].startswith("req-")
    assert lines.last()[0]["id"] == reply.headers["x-request-id"]


def test_lines_as_text_and_none_at_all(keyed: Running, lines: Lines) -> None:
    set_up_access("text")
    ask(keyed, bearer(KEYS[0]), max_tokens=4)
    eventually(lambda: "route=/v1/chat/completions" in lines.getvalue(), "no line")
    assert "INFO mlc_llm.access: request id=req-" in lines.getvalue()
    assert "tokens_out=4" in lines.getvalue() and SECRET not in lines.getvalue()
    before = lines.getvalue()
    set_up_access("off")
    keyed.call("GET", "/health")
    ask(keyed, bearer(KEYS[0]), max_tokens=4)
    keyed.wait_idle()
    assert lines.getvalue() == before


def test_other_lines_of_the_log_are_json_too(lines: Lines) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("mlc_llm.other").exception('a "quoted"\nline %d', 1)
    (line,) = lines.last()
    assert (line["level"], line["message"]) == ("error", 'a "quoted"\nline 1')
    assert "ValueError: why" in line["error"]


def test_lines_of_other_packages_are_json_too() -> None:
    """Such as of what is no HTTP. To ask for another protocol is no trouble."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    with serving("--log-format", "json") as server:
        for data in (head + upgrade, b"no HTTP\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), SECONDS) as made:
                made.sendall(data)
                assert made.recv(100)
        until(lambda: len(server.said) >= 3, "a line is missing")
        found = [json.loads(line) for line in server.said[1:]]  # behind where the server is
    assert [one["logger"] for one in found] == ["mlc_llm.access", "uvicorn.error"]


def test_nobody_waits_for_the_reader_of_the_log() -> None:
    """A pipe that nobody reads is full after 64 KB. The program logs on, and ends."""
    code = """
import logging
from mlc_llm.support.logging import ACCESS, set_up, set_up_access
set_up()
set_up_access("json")
for i in range(7_000):
    for name in (ACCESS, "mlc_llm.other", "uvicorn.error"):
        logging.getLogger(name).warning("a line of some length, number %d", i)
print("done", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"
        assert process.wait(60) == 0


def test_dropped_lines_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    handler = ThreadHandler(most=1)
    handler.setFormatter(logging.Formatter(TEXT))
    logger = logging.Logger("mlc_llm.test")
    logger.addHandler(handler)
    for i in range(5000):
        logger.info("line %d", i)
    handler.flush()
    logger.info("last")
    handler.flush()
    lines = capfd.readouterr().err.splitlines()
    dropped = sum(int(line.split()[2]) for line in lines if line.endswith("were dropped"))
    assert dropped == 5001 - (len(lines) - sum(line.endswith("were dropped") for line in lines))
