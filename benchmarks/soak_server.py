"""The server of `soak.py`: its process, what that takes, and how it is called."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ECHO = "mock://echo"
START_S = 120.0
QUEUE, PLACES, CONTEXT, TOKENS = 16, 32, 4096, 16384
"""Answers that may wait and that run: so few that clients are refused too. The KV pages: so few
that the warm-up uses all of them, and that sequences have to give up theirs."""
OVERRIDES = (
    f"max_num_sequence={PLACES};max_single_sequence_length={CONTEXT};"
    f"max_total_sequence_length={TOKENS}"
)
START = """
import sys
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
EventTraceRecorder.add_event = lambda self, *_: None  # it keeps up to a million events
from mlc_llm.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Refused(Exception):
    """The server has no place now."""


def call(port: int, method: str, path: str, body: object = None) -> dict[str, Any]:
    """The JSON of an answer. Raises `Refused`, and SystemExit for any other status than 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status in (429, 503):
            raise Refused(text)
        if reply.status != 200:
            raise SystemExit(f"{path}: {reply.status} {text[:300]!r}")
        found: dict[str, Any] = json.loads(text)
        return found
    finally:
        connection.close()


@dataclass(frozen=True)
class Facts:
    """What the server takes."""

    rss_mb: int
    anonymous_mb: int
    """Without files that are mapped."""
    threads: int
    files: int


@contextmanager
def server(model: str) -> Iterator[tuple[int, int]]:
    """A server that is ready: its port and its process. It must end in order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-c", START, "serve", "--model", model, "--port", str(port)]
    command += ["--enable-debug", "--log-format", "json", "--max-queue", str(QUEUE)]
    if model != ECHO:  # it has room for all its sequences
        command += ["--overrides", OVERRIDES]
    environment = {name: value for name, value in os.environ.items() if name != "MLC_LLM_API_KEY"}
    # The log is written, and thrown away.
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            end = time.monotonic() + START_S
            while not _is_ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the server did not start")
                time.sleep(0.2)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
            print(f"the server ended with status {status}")
            if status != 0:
                raise SystemExit("promise broken: it did not end in order")


def _is_ready(port: int) -> bool:
    try:
        call(port, "GET", "/ready")
    except (OSError, Refused):
        return False
    return True


def facts(pid: int) -> Facts:
    """Of the process; memory also of its children."""
    rss = anonymous = 0
    for one in _family(pid):
        try:
            lines = Path(f"/proc/{one}/status").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        rss += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        anonymous += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    own = Path(f"/proc/{pid}")
    threads, files = (len(list((own / name).iterdir())) for name in ("task", "fd"))
    return Facts(rss >> 10, anonymous >> 10, threads, files)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            yield from _family(int(child))


def serving_numbers(port: int) -> dict[str, Any]:
    """The engine's own."""
    found: dict[str, Any] = call(port, "POST", "/debug/dump_engine_metrics")["serving"]
    return found
