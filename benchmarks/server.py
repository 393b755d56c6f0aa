"""Our server and llama-server on the same file, as their clients see them.

    python benchmarks/server.py --llama-server PATH [--rounds N] [--requests N] [--model FILE.gguf]

The servers take turns: each is started, asked, and ended in every round. The clients run in this
process and share the cores with the server, for both alike. A point is a number of clients at a
time, each with a prompt of random words and an answer of a fixed length; `shared` means that the
first 1,000 tokens or so of all prompts are the same. All answers are greedy.

`--overload SECONDS` asks our server alone: clients that just fill it, then ten times as many; what
is compared is the time of the answers that were let in. `/health` is called meanwhile.

The last lines are ratios of medians over the rounds, ours to theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common import model_path, print_configuration
from ours import versions

from mlc_llm.bench.client import Target, send
from mlc_llm.bench.figures import Point
from mlc_llm.bench.run import at_concurrency
from mlc_llm.bench.workload import Workload, requests_of

START_S = 120.0
PLACES = 128
"""Sequences at a time, for both servers."""
CONTEXT = 2048
"""Tokens of one sequence, for both servers."""
FULL = 32
"""Clients that fill the server of the overload test; it takes on a queue of as many more."""
CLIENTS = (1, 8, 32, 128)
SHARED_WORDS = 1000


class Side(NamedTuple):
    """A server that can be measured."""

    name: str
    command: Callable[[int], Sequence[str]]
    """For a port."""
    fixed: tuple[tuple[str, object], ...]
    """Fields that make every answer as long as it may be."""
    path: str = "/v1"


def ours(model: Path, threads: int, places: int = PLACES, *more: str) -> Side:
    """`mlc_llm serve`, with room for as many sequences as llama-server. more: options."""

    def command(port: int) -> list[str]:
        return [
            sys.executable, "-m", "mlc_llm", "serve", str(model), "--port", str(port),
            "--enable-debug", "--log-format", "off",
            "--overrides", f"max_num_sequence={places};max_single_sequence_length={CONTEXT};"
            f"max_total_sequence_length={places * CONTEXT}", *more,
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(side.command(port), stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            model = _get(port, "/v1/models")["data"][0]["id"]
            yield Target("127.0.0.1", port, side.path, False, model, fixed=side.fixed), process.pid
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            _get(port, "/health")
            return
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def _get(port: int, path: str) -> dict[str, list[dict[str, str]]]:
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


def works(requests: int, answer: int) -> dict[str, tuple[int, Workload]]:
    """Clients and requests of each point."""
    plain = {
        f"{clients} clients": (
            clients, Workload(max(requests, 2 * clients), (96, 96), (answer, answer))
        )
        for clients in CLIENTS
    }  # fmt: skip
    words = (SHARED_WORDS + 16, SHARED_WORDS + 16)
    shared = Workload(requests, words, (answer // 4, answer // 4), SHARED_WORDS)
    return {**plain, "8 clients, shared": (8, shared)}


async def measured(target: Target, points: dict[str, tuple[int, Workload]]) -> dict[str, Point]:
    """Each point, after one request of its kind that does not count."""
    found = {}
    for number, (name, (clients, work)) in enumerate(points.items()):
        for wanted, _ in zip(requests_of(work, -1 - number), range(1), strict=False):
            first = await send(target, wanted.prompt, wanted.answer_tokens)
            if first.error is not None:
                raise SystemExit(f"{name}: {first.error}")
        found[name] = await at_concurrency(target, work, clients, number)
    return found


def compare(sides: Sequence[Side], rounds: int, points: dict[str, tuple[int, Workload]]) -> None:
    """Print every figure of every round, and the ratios."""
    figures: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for turn in range(rounds):
        for side in sides if turn % 2 else sides[::-1]:
            with running(side) as (target, pid):
                for name, point in asyncio.run(measured(target, points)).items():
                    row = point.row()
                    shown = {
                        "tok/s": row["answer_tokens_per_s"],
                        "TTFT p50": row["ttft_p50_ms"],
                        "TTFT p99": row["ttft_p99_ms"],
                    }
                    words = ", ".join(f"{key} {value}" for key, value in shown.items())
                    errors = f"; {row['error_kinds']}" if point.errors else ""
                    print(f"{side.name:13s} {name:18s} {words}{errors}", flush=True)
                    figures[side.name, name].append(
                        {key: float(str(value)) for key, value in shown.items() if value}
                    )
                print(f"{side.name:13s} memory {_resident_mb(pid)} MB", flush=True)
    print("ratios of medians, ours to theirs:")
    for name in points:
        ratios = []
        for key in ("tok/s", "TTFT p50", "TTFT p99"):
            one, other = (_median(figures[side.name, name], key) for side in sides)
            ratios.append(f"{key} {one / other:.2f}" if one and other else f"{key} -")
        print(f"{name:18s} {', '.join(ratios)}")


def _median(rows: Sequence[dict[str, float]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.median(values) if values else None


async def overloaded(side: Side, seconds: float) -> None:
    """Full, then ten times too many: the answers that were let in, memory, and `/health`."""
    with running(side) as (target, pid):
        for clients in (FULL, 10 * FULL):
            before, stop = _resident_mb(pid), asyncio.Event()
            watch = asyncio.ensure_future(_slowest_health(target.port, stop))
            point = await _for(target, clients, seconds)
            stop.set()
            row, health = point.row(), await watch
            print(
                f"{clients} clients, {seconds:g} s: {point.done} answers, p50 {row['total_p50_ms']}"
                f" ms, p99 {row['total_p99_ms']} ms, TTFT p99 {row['ttft_p99_ms']} ms, "
                f"{row['answer_tokens_per_s']} tok/s; not let in: {row['error_kinds'] or 'none'}; "
                f"/health at most {health * 1000:.0f} ms; "
                f"memory {before} to {_resident_mb(pid)} MB",
                flush=True,
            )


async def _for(target: Target, clients: int, seconds: float) -> Point:
    """Clients that ask again at once, also when they were sent away."""
    point = Point("concurrency", clients)
    endless = Workload(1 << 30, (96, 96), (32, 32))
    wanted, started = requests_of(endless, clients), time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - started < seconds:
            one = next(wanted)
            result = await send(target, one.prompt, one.answer_tokens)
            point.add(result)
            if result.error is not None:
                await asyncio.sleep(0.5)  # less than the server's Retry-After asks for

    await asyncio.gather(*(client() for _ in range(clients)))
    point.seconds = time.perf_counter() - started
    return point


async def _slowest_health(port: int, stop: asyncio.Event) -> float:
    most = 0.0
    while not stop.is_set():
        started = time.perf_counter()
        await asyncio.to_thread(_get, port, "/health")
        most = max(most, time.perf_counter() - started)
        await asyncio.sleep(0.2)
    return most


def _resident_mb(pid: int) -> int:
    """Of the process and its children."""
    kilobytes, todo = 0, [pid]
    while todo:
        one = todo.pop()
        try:
            lines = Path(f"/proc/{one}/status").read_text(encoding="ascii").splitlines()
            children = Path(f"/proc/{one}/task/{one}/children").read_text(encoding="ascii")
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        todo += map(int, children.split())
    return kilobytes // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a GGUF file (default: the default model)")
    parser.add_argument("--llama-server", type=Path, help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32, help="of a point, at least")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--overload", type=float, metavar="SECONDS")
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    print_configuration("servers", model=model.name, threads=arguments.threads, **versions())
    if arguments.overload is not None:
        side = ours(model, arguments.threads, FULL, "--max-queue", str(FULL))
        asyncio.run(overloaded(side, arguments.overload))
        return
    sides = [ours(model, arguments.threads)]
    if arguments.llama_server is not None:
        sides.append(theirs(arguments.llama_server, model, arguments.threads))
    if len(sides) < 2:
        raise SystemExit("--llama-server: say where the program is")
    compare(sides, arguments.rounds, works(arguments.requests, arguments.answer))


if __name__ == "__main__":
    main()
