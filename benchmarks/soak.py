"""A server at full load for long: nothing is lost, and nothing is left.

    python benchmarks/soak.py [--minutes N] [--seed N] [--clients N] [--model FILE.gguf]
    python benchmarks/soak.py --requests 100000            # the echo engine, and no time

The clients are always more than the server takes: they ask all its APIs, leave in the middle, send
what is wrong, read slowly, or read nothing at all (see `soak_requests.py`). After a warm-up the
server gets idle once, and its memory, threads and files are noted. Then comes the load, with a line
for each minute. Then all clients leave at once, and the server gets idle again. One fixed question
is asked all the time.

It ends with status 1 if a promise is broken: an answer has no end, or two; a wrong request gets
something else than a refusal; the fixed question gets another answer; memory grows by more than
5 %; a thread, a file or a KV page is left. Memory is that of the server's process and its children.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from common import model_path, print_configuration
from ours import versions
from soak_client import Lost, outcome
from soak_requests import next_request
from soak_server import (
    CONTEXT,
    ECHO,
    OVERRIDES,
    QUEUE,
    TOKENS,
    Facts,
    Refused,
    call,
    facts,
    server,
    serving_numbers,
)

GROWTH = 1.05
LAST_S, IDLE_S = 20.0, 60.0
"""The last answers come within the first, or their clients leave; the server is idle within the
second."""
CLIENTS = 64
WARM_UP_MIN, WARM_UP, WARM_UP_LEAST = 2.0, 0.05, 5000
"""The warm-up takes so many minutes; or this part of the requests, and at least so many: before
that, the memory of the echo server (about 100 MB) has not got its size."""
FIXED = {
    "messages": [{"role": "user", "content": "Name three colours."}],
    "max_tokens": 24, "temperature": 0,
}  # fmt: skip
OUTCOMES = ("sent", "ended", "cancelled", "refused", "malformed", "given up")
COLUMNS = (
    "minute", *OUTCOMES, "lost", "RSS MB", "anon MB", "threads", "files", "KV pages", "/health ms",
)  # fmt: skip


@dataclass
class Load:
    """The clients, and what they have seen."""

    port: int
    pid: int
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    answer: str | None = None
    """To the fixed question."""
    slowest_health_s: float = 0.0
    started: int = 0

    async def run(self, clients: int, goes_on: Callable[[], bool]) -> None:
        """Ask until `goes_on` says no; those that have no answer soon leave then, all at once."""
        watch = asyncio.ensure_future(self._watch(goes_on))
        tasks = [asyncio.ensure_future(self._client(goes_on)) for _ in range(clients)]
        await watch
        _, left = await asyncio.wait(tasks, timeout=LAST_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*tasks)

    async def _client(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self.started += 1
            chance = random.Random(self.seed * 1_000_003 + self.started)
            wanted = next_request(chance)
            self.counts["sent"] += 1
            try:
                became = await outcome(self.port, wanted, chance)
                self.counts[became] += 1
            except Lost as reason:
                self._lose(str(reason))
                continue
            except asyncio.CancelledError:
                self.counts["cancelled"] += 1
                return
            if became == "refused" and goes_on():
                await asyncio.sleep(3 * chance.random())  # less than Retry-After asks for

    async def _watch(self, goes_on: Callable[[], bool]) -> None:
        """Call `/health`, and ask the fixed question."""
        while goes_on():
            started = time.perf_counter()
            await asyncio.to_thread(call, self.port, "GET", "/health")
            self.slowest_health_s = max(self.slowest_health_s, time.perf_counter() - started)
            await asyncio.to_thread(self._ask_fixed)
            await asyncio.sleep(1.0)

    def _ask_fixed(self) -> None:
        try:
            found = call(self.port, "POST", "/v1/chat/completions", FIXED)
        except Refused:
            return
        text = found["choices"][0]["message"]["content"]
        if self.answer is None:
            self.answer = text
        elif text != self.answer:
            self._lose(f"another answer to the fixed question: {text!r}, not {self.answer!r}")

    def _lose(self, reason: str) -> None:
        self.lost.append(reason)
        print(f"LOST: {reason}", flush=True)


def idle(load: Load) -> Facts:
    """What the server takes when nothing is left to do. Raises SystemExit if that never comes."""
    end = time.monotonic() + IDLE_S
    while time.monotonic() < end:
        found = serving_numbers(load.port)
        if found["num_requests_running"] == found["num_requests_waiting"] == 0:
            time.sleep(2.0)  # connections close
            return facts(load.pid)
        time.sleep(0.5)
    raise SystemExit("promise broken: requests go on without a client")


def print_line(load: Load, minute: float) -> Facts:
    """A line of the table."""
    now = facts(load.pid)
    counts = [load.counts[name] for name in OUTCOMES]
    try:
        pages = serving_numbers(load.port)["kv_pages_used"]
    except Refused:  # the engine did not answer in time, because a step took longer
        pages = "-"
    row: Sequence[object] = (
        f"{minute:.1f}", *counts, len(load.lost), now.rss_mb, now.anonymous_mb, now.threads,
        now.files, pages, f"{load.slowest_health_s * 1000:.0f}",
    )  # fmt: skip
    print(_joined(row), flush=True)
    load.slowest_health_s = 0.0
    return now


def _joined(row: Sequence[object]) -> str:
    return " ".join(f"{one!s:>{max(len(name), 7)}}" for name, one in zip(COLUMNS, row, strict=True))


async def _under_load(load: Load, clients: int, goes_on: Callable[[], bool]) -> list[Facts]:
    """The facts of each minute."""
    running = asyncio.ensure_future(load.run(clients, goes_on))
    started, found = time.monotonic(), []
    while not running.done():
        await asyncio.wait([running], timeout=60.0)
        if goes_on():
            minute = (time.monotonic() - started) / 60
            found.append(await asyncio.to_thread(print_line, load, minute))
    await running
    return found


def fill_pages(load: Load) -> None:
    """Use every KV page once: memory that was never written is in no process."""
    size = CONTEXT - 100
    prompts = [
        [random.Random(i).randrange(32, 120) for _ in range(size)] for i in range(TOKENS // size)
    ]
    body = {"prompt": [*prompts, prompts[0][::-1]], "max_tokens": 1}
    call(load.port, "POST", "/v1/completions", body)
    print(f"KV pages filled: {serving_numbers(load.port)['kv_pages_used']}", flush=True)


def limit_of(minutes: float, requests: int | None, load: Load) -> Callable[[], bool]:
    """Says whether the load goes on: for so long, or for so many more requests."""
    end, most = time.monotonic() + minutes * 60, load.started + (requests or 0)
    if requests is not None:
        return lambda: load.started < most
    return lambda: time.monotonic() < end


def broken(load: Load, before: Facts, after: Facts, minutes: Sequence[Facts]) -> Iterator[str]:
    """The promises that were not kept."""
    if load.lost:
        yield f"{len(load.lost)} requests or answers lost"
    judged = sum(load.counts[name] for name in OUTCOMES[1:]) + len(load.lost)
    if judged < load.counts["sent"]:
        yield f"{load.counts['sent'] - judged} requests without an outcome"
    if after.rss_mb > before.rss_mb * GROWTH:
        yield f"idle memory grew from {before.rss_mb} to {after.rss_mb} MB"
    if len(minutes) >= 10:
        first, last = (median(one.rss_mb for one in part) for part in (minutes[:5], minutes[-5:]))
        print(f"memory under load, medians of five minutes: {first:g} MB first, {last:g} MB last")
        if last > first * GROWTH:
            yield f"memory under load grew from {first:g} to {last:g} MB"
    if after.threads > before.threads:
        yield f"threads: {before.threads} before, {after.threads} after"
    if after.files > before.files:
        yield f"files: {before.files} before, {after.files} after"
    numbers = serving_numbers(load.port)
    if numbers["kv_cache_usage"] != 0 or numbers["ended"]["error"]:
        yield f"KV cache usage {numbers['kv_cache_usage']}, ended: {numbers['ended']}"
    call(load.port, "POST", "/debug/reset_engine")
    pages = serving_numbers(load.port)["kv_pages_used"]
    print(f"KV pages after the prefix cache was emptied: {pages}; ended: {numbers['ended']}")
    if pages:
        yield f"{pages} KV pages left"


def soak(arguments: argparse.Namespace, port: int, pid: int) -> list[str]:
    """Warm up, load, look. Returns the broken promises."""
    load = Load(port, pid, arguments.seed)
    print(_joined(COLUMNS), flush=True)
    if arguments.requests is None:
        fill_pages(load)
    most = arguments.requests
    warm = None if most is None else max(WARM_UP_LEAST, int(most * WARM_UP))
    asyncio.run(_under_load(load, arguments.clients, limit_of(WARM_UP_MIN, warm, load)))
    before = idle(load)
    print(f"idle after the warm-up: {before}", flush=True)
    goes_on = limit_of(arguments.minutes, arguments.requests, load)
    seen = asyncio.run(_under_load(load, arguments.clients, goes_on))
    print_line(load, arguments.minutes)
    after = idle(load)
    print(f"idle after the load: {after}; grown by {after.rss_mb / before.rss_mb - 1:.1%}")
    return list(broken(load, before, after, seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a GGUF file (default: the default model)")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--requests", type=int, help="so many to the echo engine, in no set time")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    is_echo = arguments.requests is not None and arguments.model is None
    model = ECHO if is_echo else str(model_path(arguments.model))
    print_configuration(
        "soak", model=Path(model).name, clients=arguments.clients, seed=arguments.seed,
        minutes=arguments.minutes, requests=arguments.requests, queue=QUEUE, overrides=OVERRIDES,
        **versions(),
    )  # fmt: skip
    with server(model) as (port, pid):
        found = soak(arguments, port, pid)
    for one in found:
        print(f"promise broken: {one}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
