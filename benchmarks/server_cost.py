"""`server.py cost`: what the server adds to the engine, and how soon it listens."""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common import HERE, Spread
from served import Side, free_port, processor_s, running

from mlc_llm.bench.client import Target

STREAMS = 32
PROMPT = 96
ANSWER = 128
ONE_TOKEN = 100
"""Requests for one token, in each round."""
IDS = (1000, 20000)
"""Token ids of prompts are random, from the first to the second number."""


class Run(NamedTuple):
    """All streams of one run."""

    tokens_per_s: float
    processor_s: float
    """Of the server, or of the process of the bare engine."""
    own_s: float
    """Of the clients."""


class Engine:
    """The bare engine, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._line()

    def run(self, prompts: list[list[int]], answer: int) -> tuple[float, float]:
        """Seconds, and processor time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "answer": answer}) + "\n")
        self._process.stdin.flush()
        found = self._line()
        return found["seconds"], found["processor_s"]

    def _line(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the bare engine ended")
        found: dict[str, float] = json.loads(line)
        return found


@contextmanager
def _bare(model: Path, places: int) -> Iterator[Engine]:
    command = [sys.executable, str(HERE / "bare_engine.py"), str(model), str(places)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Engine(process)
        assert process.stdin is not None
        process.stdin.close()


def cost(side: Side, model: Path, rounds: int) -> str:
    """Print each round. Returns the table."""
    bare_runs, served, engine_ms, server_ms, starts = [], [], [], [], []
    for turn in range(rounds):
        with _bare(model, STREAMS) as engine:
            engine.run(_prompts(-1 - turn, STREAMS, PROMPT), 8)  # warm
            seconds, processor = engine.run(_prompts(turn, STREAMS, PROMPT), ANSWER)
            bare_runs.append(Run(STREAMS * ANSWER / seconds, processor, 0.0))
            singles = _prompts(turn, ONE_TOKEN, 1)
            engine_ms.append(Spread.of([1e3 * engine.run([one], 1)[0] for one in singles]).median)
        with running(side) as (target, pid):
            _streams(target, pid, _prompts(-1 - turn, STREAMS, PROMPT), 8)
            served.append(_streams(target, pid, _prompts(turn, STREAMS, PROMPT), ANSWER))
            server_ms.append(_one_token(target, singles))
        starts.append(_start(side))
        print(bare_runs[-1], served[-1], engine_ms[-1], server_ms[-1], starts[-1], flush=True)
    return _table(bare_runs, served, engine_ms, server_ms, starts)


def _table(
    bare: list[Run],
    served: list[Run],
    engine_ms: list[float],
    server_ms: list[float],
    starts: list[tuple[float, float]],
) -> str:
    share = [
        100 * one.tokens_per_s / other.tokens_per_s for one, other in zip(served, bare, strict=True)
    ]
    work = STREAMS * ANSWER * 1e-6
    pairs = zip(served, bare, strict=True)
    more = [(one.processor_s - other.processor_s) / work for one, other in pairs]
    own = [one.own_s / work for one in served]
    delays = [one - other for one, other in zip(server_ms, engine_ms, strict=True)]
    rows = (
        (f"{STREAMS} streams, the engine alone, tokens a second", [b.tokens_per_s for b in bare]),
        ("the same through the server", [one.tokens_per_s for one in served]),
        ("the server's share of the engine's speed, % (95 to reach)", share),
        ("processor time that the server adds, µs a token", more),
        ("processor time of the clients, µs a token", own),
        ("a request for one token: the server adds, ms (3 to reach)", delays),
        ("command to listening socket, s (1 to reach)", [one for one, _ in starts]),
        ("command to ready, s", [other for _, other in starts]),
    )
    lines = [f"| {len(bare)} rounds | median (least to most) |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {Spread.of(values)} |" for name, values in rows)])


def _prompts(seed: int, count: int, length: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(*IDS) for _ in range(length)] for _ in range(count)]


def _request(target: Target, prompt: list[int], answer: int, *, stream: bool) -> bytes:
    fields = {"model": target.model, "prompt": prompt, "max_tokens": answer, "stream": stream}
    body = json.dumps(fields | dict(target.fixed)).encode()
    head = (
        f"POST {target.path}/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _streams(target: Target, pid: int, prompts: list[list[int]], answer: int) -> Run:
    """The cheapest client there is: it looks for the end of each answer, and at nothing else."""
    server, own, started = processor_s(pid), time.process_time(), time.perf_counter()
    with selectors.DefaultSelector() as open_sockets:
        for prompt in prompts:
            one = socket.create_connection((target.host, target.port))
            one.sendall(_request(target, prompt, answer, stream=True))
            open_sockets.register(one, selectors.EVENT_READ)
        left = len(prompts)
        while left:
            for key, _ in open_sockets.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 16)
                if not data or b"[DONE]" in data:
                    open_sockets.unregister(connection)
                    connection.close()
                    left -= 1
                if not data:
                    raise SystemExit("an answer was cut")
    seconds = time.perf_counter() - started
    own_s = time.process_time() - own
    return Run(len(prompts) * answer / seconds, processor_s(pid) - server, own_s)


def _one_token(target: Target, prompts: list[list[int]]) -> float:
    """The median of requests one after another on one connection, in milliseconds."""
    times = []
    with socket.create_connection((target.host, target.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for prompt in prompts:
            data, request = b"", _request(target, prompt, 1, stream=False)
            started = time.perf_counter()
            connection.sendall(request)
            while not data.endswith(b"}"):
                data += connection.recv(1 << 16)
            times.append(1e3 * (time.perf_counter() - started))
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"one token: {data[:100]!r}")
    return Spread.of(times).median


def _start(side: Side) -> tuple[float, float]:
    """Seconds from the command to a socket that listens, and to the first answer of `/ready`."""
    port = free_port()
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    with subprocess.Popen(
        side.command(port), stdout=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            while True:
                if process.poll() is not None:
                    raise SystemExit("the server did not start")
                try:
                    connection = socket.create_connection(("127.0.0.1", port))
                    break
                except OSError:
                    time.sleep(0.002)
            listening = time.perf_counter() - started
            with connection:
                connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
                connection.recv(1 << 12)
            return listening, time.perf_counter() - started
        finally:
            process.terminate()
