"""`server.py overload`: a server that is full, then ten times as many clients."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from common import HERE
from served import Side, processor_s, resident_mb, running

from mlc_llm.bench.client import Target, send
from mlc_llm.bench.figures import Point
from mlc_llm.bench.workload import Workload, requests_of

PLACES = 32
"""Answers that the server computes at a time; as many more may wait."""
FULL = 2 * PLACES
"""Clients that take all places, and all of the queue: one more would be refused."""
TIMES = 10
ANSWER = 32
PAUSE_S = 0.5
"""A client that was refused asks again so soon, whatever `Retry-After` says."""
WARM_S = 5.0


@dataclass
class Load:
    """What was measured with one number of clients."""

    clients: int
    point: Point = field(default_factory=lambda: Point("concurrency", 0))
    health_s: float = 0.0
    """The slowest `/health`."""
    memory_mb: tuple[int, int] = (0, 0)
    """Before and after."""
    server_s: float = 0.0
    """Processor time of the server."""
    own_s: float = 0.0
    """Of the clients."""

    @property
    def refused(self) -> int:
        return sum(self.point.errors.values())

    def row(self) -> str:
        """A row of the table."""
        row, memory = self.point.row(), " to ".join(map(str, self.memory_mb))
        own = self.own_s / (self.own_s + self.server_s) if self.own_s else 0.0
        cells = (
            f"{self.clients}",
            f"{self.point.done}",
            f"{self.refused}",
            f"{row['total_p50_ms']:,.0f}",
            f"{row['total_p99_ms']:,.0f}",
            f"{row['ttft_p99_ms']:,.0f}",
            f"{row['answer_tokens_per_s']:.0f}",
            f"{1000 * self.health_s:.0f}",
            memory,
            f"{100 * own:.0f} %",
        )
        return f"| {' | '.join(cells)} |"


async def _load(target: Target, pid: int, clients: int, seconds: float) -> Load:
    found = Load(clients)
    asking = asyncio.ensure_future(_ask(target, clients, seconds, found.point))
    await asyncio.sleep(WARM_S)
    before, server, own = resident_mb(pid), processor_s(pid), time.process_time()
    with _health(target.port) as probe:
        await asking
        found.health_s = float(probe.communicate()[0])
    found.server_s = processor_s(pid) - server
    found.own_s = time.process_time() - own
    found.memory_mb = (before, resident_mb(pid))
    return found


async def _ask(target: Target, clients: int, seconds: float, point: Point) -> None:
    """Clients that ask again at once, also when they were sent away. What ends in the first
    `WARM_S` seconds, in which all of them come as one crowd, does not count."""
    words = (96, 96)
    wanted = requests_of(Workload(1 << 30, words, (ANSWER, ANSWER)), clients)
    begin = time.perf_counter() + WARM_S

    async def client() -> None:
        while time.perf_counter() < begin + seconds:
            one = next(wanted)
            result = await send(target, one.prompt, one.answer_tokens)
            if time.perf_counter() >= begin:
                point.add(result)
            if result.error is not None:
                await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(client() for _ in range(clients)))
    point.seconds = time.perf_counter() - begin


@contextmanager
def _health(port: int) -> Iterator[subprocess.Popen[str]]:
    """A process that calls `/health`, and prints the slowest answer when its input ends."""
    command = [sys.executable, str(HERE / "health_probe.py"), str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def overload(side: Side, seconds: float, rounds: int) -> str:
    """Print the figures of each round. Returns the median round, by the ratio of the p99."""
    found: list[tuple[float, str]] = []
    for _ in range(rounds):
        with running(side) as (target, pid):
            loads = [
                asyncio.run(_load(target, pid, clients, seconds))
                for clients in (FULL, TIMES * FULL)
            ]
        if not all(one.point.done for one in loads):
            raise SystemExit("--seconds: no answer ended in this time")
        full, over = (float(str(one.point.row()["total_p99_ms"])) for one in loads)
        text = _table(loads, over / full)
        print(text, flush=True)
        found.append((over / full, text))
    return sorted(found)[(rounds - 1) // 2][1]


def _table(loads: list[Load], ratio: float) -> str:
    head = (
        "clients", "answers", "refusals", "p50, ms", "p99, ms", "TTFT p99, ms", "tokens a second",
        "slowest `/health`, ms", "memory, MB", "the clients' part of the processor time",
    )  # fmt: skip
    full, over = (one.point.row()["answer_tokens_per_s"] for one in loads)
    end = (
        f"Ten times the clients: p99 of the answers that were let in {ratio:.2f} times as long, "
        f"{100 * float(str(over)) / float(str(full)):.0f} % of the tokens a second."
    )
    rows = [one.row() for one in loads]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows, "", end])
