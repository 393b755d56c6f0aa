"""`mlc_llm serve` as a process of its own, with an echo engine whose steps take a while."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

JSON = {"content-type": "application/json"}
START = """
import signal, sys, time, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored around the tests, as by nohup
from mlc_llm.serve.core.mock_echo import EchoRunner
usual = EchoRunner.run
def run(self, batch):
    time.sleep({step_s})
    if any({frozen!r} in bytes(row.token_ids).decode(errors="replace") for row in batch.rows):
        threading.Event().wait()
    return usual(self, batch)
EchoRunner.run = run
{more}
from mlc_llm.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
FROZEN = "freeze the engine"
"""A prompt with these words is never computed."""
SECONDS = 120.0


@dataclass
class Process:
    """A server, and all that it has said so far."""

    process: subprocess.Popen[str]
    port: int
    said: list[str]
    reader: threading.Thread
    open: list[http.client.HTTPConnection | HTTPResponse] = field(default_factory=list)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def close(self) -> None:
        for one in self.open:
            one.close()

    def get(self, path: str) -> tuple[int, Any]:
        status, data = self.get_bytes(path)
        return status, json.loads(data)

    def get_bytes(self, path: str) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def until_it_has(self, answers: int) -> None:
        """Wait until so many answers run or wait."""
        line = f"\nserver_answers {answers}"
        until(lambda: line in self.get_bytes("/metrics")[1].decode(), f"not {answers} answers")

    def ask(self, text: str, **more: Any) -> HTTPResponse:
        """A chat; the caller reads the answer."""
        connection = self.connect()
        body = {"messages": [{"role": "user", "content": text}], **more}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        reply = connection.getresponse()
        self.open += [connection, reply]
        return reply

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        assert not any("Traceback" in line for line in self.said), self.said
        return self.process.returncode


@contextmanager
def serving(
    *flags: str,
    models: Sequence[str] = ("mock://echo",),
    step_s: float = 0.002,
    more: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A server that listens. more: lines of Python that run before it starts."""
    code = START.format(step_s=step_s, frozen=FROZEN, more=more)
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", *flags, *models],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=Path(__file__).parent,
    )
    said: list[str] = []
    reader = threading.Thread(target=_read, args=(process, said))
    reader.start()
    try:
        until(lambda: "serving" in " ".join(said) or not reader.is_alive(), "it does not start")
        first = next((line for line in said if "serving" in line), None)
        assert first is not None, f"it did not start: {said}"
        found = re.search(r"serving .* at .*:(\d+)/v1", first)
        with closing(Process(process, int(found[1]) if found else 0, said, reader)) as server:
            yield server
    finally:
        process.kill()
        process.wait(SECONDS)
        reader.join(SECONDS)


def _read(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    with process.stderr:
        said.extend(line.rstrip() for line in process.stderr)


def until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)
