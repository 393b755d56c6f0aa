"""Runs the requests of one point: so many at a time, or so many a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from mlc_llm.bench.client import Target, send
from mlc_llm.bench.figures import Point
from mlc_llm.bench.workload import Wanted, Workload, arrivals, requests_of

MOST_OPEN = 4096
"""With a rate, so many requests may be open; more than that would measure this program."""
TOO_MANY = "not sent: too many open requests"


async def at_concurrency(target: Target, work: Workload, clients: int, number: int) -> Point:
    """`clients` clients, each of which sends its next request when its last one has ended."""
    point, wanted = Point("concurrency", clients), requests_of(work, number)
    started = time.perf_counter()
    await asyncio.gather(*(_client(target, wanted, point) for _ in range(clients)))
    point.seconds = time.perf_counter() - started
    return point


async def at_rate(target: Target, work: Workload, rate: float, number: int) -> Point:
    """Requests at random times, `rate` a second on average, whether or not others have ended."""
    point, started = Point("rate", rate), time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    times = arrivals(rate, work.seed, number)
    for wanted, planned in zip(requests_of(work, number), times, strict=False):
        await asyncio.sleep(max(0.0, planned - (time.perf_counter() - started)))
        if len(tasks) >= MOST_OPEN:
            point.errors[TOO_MANY] += 1
            continue
        point.late.add(time.perf_counter() - started - planned)
        task = asyncio.ensure_future(_one(target, wanted, point))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    point.seconds = time.perf_counter() - started
    return point


async def _client(target: Target, wanted: Iterator[Wanted], point: Point) -> None:
    for one in wanted:  # all clients take from the same requests
        await _one(target, one, point)


async def _one(target: Target, wanted: Wanted, point: Point) -> None:
    point.add(await send(target, wanted.prompt, wanted.answer_tokens))
