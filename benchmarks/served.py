"""Servers that can be measured: how they are started, and what their processes take."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mlc_llm.bench.client import Target

START_S = 120.0
PLACES = 128
"""Sequences at a time, for both servers."""
CONTEXT = 2048
"""Tokens of one sequence, for both servers."""
TICKS = os.sysconf("SC_CLK_TCK")


class Side(NamedTuple):
    """A server that can be measured."""

    name: str
    command: Callable[[int], Sequence[str]]
    """For a port."""
    fixed: tuple[tuple[str, object], ...]
    """Fields that make every answer as long as it may be."""
    path: str = "/v1"


def overrides(places: int) -> str:
    """The settings of our engine: room for so many sequences."""
    total = places * CONTEXT
    return (
        f"max_num_sequence={places};max_single_sequence_length={CONTEXT};"
        f"max_total_sequence_length={total}"
    )


def ours(model: Path, threads: int, places: int = PLACES, *more: str) -> Side:
    """`mlc_llm serve`, with room for as many sequences as llama-server. more: options."""

    def command(port: int) -> list[str]:
        return [
            sys.executable, "-m", "mlc_llm", "serve", str(model), "--port", str(port),
            "--enable-debug", "--log-format", "off", "--overrides", overrides(places), *more,
        ]  # fmt: skip

    os.environ["MLC_NUM_THREADS"] = str(threads)
    return Side("mlc_llm", command, (("temperature", 0), ("debug_config", {"ignore_eos": True})))


def theirs(program: Path, model: Path, threads: int) -> Side:
    """llama-server, with continuous batching and its prompt cache, as it is by default."""

    def command(port: int) -> list[str]:
        return [
            str(program), "-m", str(model), "--port", str(port), "-t", str(threads), "-tb",
            str(threads), "-np", str(PLACES), "-c", str(PLACES * CONTEXT), "--log-disable",
        ]  # fmt: skip

    return Side("llama-server", command, (("temperature", 0), ("ignore_eos", True)))


@contextmanager
def running(side: Side) -> Iterator[tuple[Target, int]]:
    """A server that is ready, and its process."""
    port = free_port()
    with subprocess.Popen(side.command(port), stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            model = get(port, "/v1/models")["data"][0]["id"]
            yield Target("127.0.0.1", port, side.path, False, model, fixed=side.fixed), process.pid
        finally:
            process.terminate()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


def get(port: int, path: str) -> dict[str, list[dict[str, str]]]:
    """The JSON of a page. Raises ValueError for another status than 200, and OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            raise ValueError(f"{path}: {reply.status}")
        found: dict[str, list[dict[str, str]]] = json.loads(reply.read())
        return found
    finally:
        connection.close()


def resident_mb(pid: int) -> int:
    """Memory of the process and its children."""
    kilobytes = 0
    for one in _tree(pid):
        lines = _read(f"/proc/{one}/status").splitlines()
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return kilobytes // 1024


def processor_s(pid: int) -> float:
    """Processor time that the process and its children have taken, in seconds."""
    found = [_read(f"/proc/{one}/stat").rpartition(")")[2].split() for one in _tree(pid)]
    return sum(int(fields[11]) + int(fields[12]) for fields in found if fields) / TICKS


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += map(int, _read(f"/proc/{found[-1]}/task/{found[-1]}/children").split())
    return found


def _read(path: str) -> str:
    """Empty if the process has ended."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            get(port, "/health")
            return
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")
