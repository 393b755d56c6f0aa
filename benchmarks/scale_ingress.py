"""What the ingress of Ray Serve adds: the same engine behind it and behind `mlc_llm serve`.

    python benchmarks/scale_ingress.py
    python benchmarks/scale_ingress.py --model path/to/model.gguf --rounds 5

Both run at the same time with one replica, and only one of them is asked at a time, alternately.
The usual engine is the echo engine with the pace of a model: its steps sleep, so that both
processes of the one way and the three of the other have processors to themselves. Of each figure,
the median of the rounds counts. Ask on a machine where nothing else runs.

There are two workloads, and both are always measured. With answers of equal length, all clients end
in the same moment and ask in the same moment, again and again: it is the hard one. With answers of
different lengths, requests come one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence

import server_page
from common import Spread
from scale_app import Served, application, plain_server

from mlc_llm.bench.client import Target
from mlc_llm.bench.run import at_concurrency
from mlc_llm.bench.workload import Workload

PROMPT_WORDS = (20, 40)
ANSWERS = ((100, 100), (60, 140))
"""Tokens of an answer, from the first to the second number: a workload each."""
WARM_TOKENS = (10, 10)
WAYS = ("mlc_llm serve", "Ray Serve")

Found = dict[tuple[tuple[int, int], int, str], list[tuple[float, float]]]
"""By answer tokens, clients and way: the time to the first token and the speed of each round."""


def measure(
    served: Served, clients: int, requests: int, number: int, answer: tuple[int, int]
) -> tuple[float, float]:
    """The median time to the first token in ms, and answer tokens a second. answer: its tokens,
    from the first to the second number."""
    target = Target("127.0.0.1", served.port, "/v1", secure=False, model=served.model)
    work = Workload(requests, PROMPT_WORDS, answer)
    row = asyncio.run(at_concurrency(target, work, clients, number)).row()
    if row["errors"]:
        raise SystemExit(f"requests failed: {row['error_kinds']}")
    return float(str(row["ttft_p50_ms"])), float(str(row["answer_tokens_per_s"]))


def table(found: Found) -> str:
    """Medians of the rounds, with the least and the greatest value."""
    lines = ["| answer tokens | clients | way | TTFT p50, ms | tokens/s |", "|---|---|---|---|---|"]
    for (answer, clients, way), rounds in found.items():
        ttft, speed = (str(Spread.of(column)) for column in zip(*rounds, strict=True))
        lines.append(f"| {_words(answer)} | {clients} | {way} | {ttft} | {speed} |")
    return "\n".join(lines)


def added(found: Found) -> str:
    """What the second way adds to the first one, by the medians."""
    middle = {
        key: [Spread.of(column).median for column in zip(*rounds, strict=True)]
        for key, rounds in found.items()
    }
    lines = ["| answer tokens | clients | TTFT added, ms | tokens/s |", "|---|---|---|---|"]
    for answer, clients in dict.fromkeys((answer, clients) for answer, clients, _ in found):
        (ttft, speed), (other_ttft, other_speed) = (middle[answer, clients, way] for way in WAYS)
        change = f"{other_ttft - ttft:+.1f} | {other_speed / speed - 1:+.1%}"
        lines.append(f"| {_words(answer)} | {clients} | {change} |")
    return "\n".join(lines)


def _words(answer: tuple[int, int]) -> str:
    low, high = answer
    return f"{low} each" if low == high else f"{low} to {high}"


def measured(all_served: Sequence[Served], clients: Sequence[int], rounds: int, each: int) -> Found:
    """each: requests of each client in a round."""
    found: Found = {}
    for served in all_served:
        for number in clients:
            measure(served, number, number, 0, WARM_TOKENS)
    for turn in range(1, rounds + 1):
        for answer, number in itertools.product(ANSWERS, clients):
            for way, served in zip(WAYS, all_served, strict=True):
                one = measure(served, number, number * each, turn, answer)
                found.setdefault((answer, number, way), []).append(one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="mock://echo?step_ms=20")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--requests", type=int, default=4, help="of each client in a round")
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    args = parser.parse_args()
    config = {"max_num_sequence": 32}
    text = ";".join(f"{name}={value}" for name, value in config.items())
    with (
        plain_server(args.model, {"overrides": text, "mode": "server"}) as plain,
        application(args.model, engine_config=config) as app,
    ):
        found = measured((plain, app), args.clients, args.rounds, args.requests)
    text = f"{table(found)}\n\n{added(found)}"
    print(f"{args.model}, {json.dumps(config)}, {args.rounds} rounds")
    print(text)
    if args.write:
        server_page.write("", text, server_page.SCALE, "scale_ingress.py")


if __name__ == "__main__":
    main()
