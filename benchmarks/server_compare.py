"""`server.py compare`: the same requests to our server and to llama-server, in turns."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from served import Side, resident_mb, running

from mlc_llm.bench.client import Target, send
from mlc_llm.bench.figures import Point
from mlc_llm.bench.run import at_concurrency
from mlc_llm.bench.workload import Workload, requests_of

CLIENTS = (1, 8, 32, 128)
PROMPT_WORDS = 96
SHARED_WORDS = 1000
SPEED, EARLY, LATE = "tok/s", "TTFT p50", "TTFT p99"
MEMORY = "memory"

Rows = dict[tuple[str, str], list[dict[str, float]]]
"""Side and point -> the figures of each round."""


def works(requests: int, answer: int) -> dict[str, tuple[int, Workload]]:
    """Clients and requests of each point: `requests`, or one and a half for each client."""
    words = (PROMPT_WORDS, PROMPT_WORDS)
    plain = {
        f"{clients}": (clients, Workload(max(requests, 3 * clients // 2), words, (answer, answer)))
        for clients in CLIENTS
    }
    long = (SHARED_WORDS + 16, SHARED_WORDS + 16)
    shared = Workload(requests, long, (answer // 4, answer // 4), SHARED_WORDS)
    return {**plain, f"8, the first {SHARED_WORDS:,} words the same": (8, shared)}


async def _measured(target: Target, points: Mapping[str, tuple[int, Workload]]) -> dict[str, Point]:
    """Each point, after one request of its kind that does not count."""
    found = {}
    for number, (name, (clients, work)) in enumerate(points.items()):
        for wanted, _ in zip(requests_of(work, -1 - number), range(1), strict=False):
            first = await send(target, wanted.prompt, wanted.answer_tokens)
            if first.error is not None:
                raise SystemExit(f"{name}: {first.error}")
        found[name] = await at_concurrency(target, work, clients, number)
    return found


def compare(sides: Sequence[Side], rounds: int, points: Mapping[str, tuple[int, Workload]]) -> Rows:
    """Print every figure of every round, and return them."""
    found: Rows = defaultdict(list)
    for turn in range(rounds):
        for side in sides if turn % 2 else sides[::-1]:
            with running(side) as (target, pid):
                for name, point in asyncio.run(_measured(target, points)).items():
                    shown = _figures(point)
                    words = ", ".join(f"{key} {value:.5g}" for key, value in shown.items())
                    errors = f"; {point.row()['error_kinds']}" if point.errors else ""
                    print(f"{side.name:13s} {name:24s} {words}{errors}", flush=True)
                    found[side.name, name].append(shown)
                found[side.name, MEMORY].append({MEMORY: resident_mb(pid)})
    return found


def _figures(point: Point) -> dict[str, float]:
    row = point.row()
    names = {SPEED: "answer_tokens_per_s", EARLY: "ttft_p50_ms", LATE: "ttft_p99_ms"}
    return {key: float(str(row[name])) for key, name in names.items() if row[name] is not None}


def table(sides: Sequence[str], rows: Rows, rounds: int) -> str:
    """Medians over the rounds as Markdown: each side, and the ratio of the first to the second."""
    names = list(dict.fromkeys(name for _, name in rows if name != MEMORY))
    lines = [
        f"{'One round' if rounds == 1 else f'Medians of {rounds} rounds'}. "
        f"Each cell: {', '.join(sides)}, ratio.",
        "",
        "| clients | tokens a second | TTFT p50, ms | TTFT p99, ms |",
        "|---|---|---|---|",
    ]
    for name in names:
        cells = [_cell(sides, rows, name, key) for key in (SPEED, EARLY, LATE)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    memory = [_median(rows[side, MEMORY], MEMORY) for side in sides]
    shown = " and ".join(f"{one:,.0f} MB" for one in memory if one is not None)
    return "\n".join([*lines, "", f"Memory at the end: {shown}."])


def _cell(sides: Sequence[str], rows: Rows, name: str, key: str) -> str:
    values = [_median(rows[side, name], key) for side in sides]
    shown = ["–" if one is None else f"{one:,.0f}" for one in values]
    one, other = values
    return ", ".join([*shown, f"**{one / other:.2f}**" if one and other else "–"])


def _median(rows: Sequence[Mapping[str, float]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.median(values) if values else None
