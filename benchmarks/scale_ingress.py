"""What the ingress of Ray Serve adds: the same engine behind it and behind `mlc_llm serve`.

    python benchmarks/scale_ingress.py
    python benchmarks/scale_ingress.py --model path/to/model.gguf --rounds 5

Both run at the same time with one replica, and only one of them is asked at a time, alternately.
The usual engine is the echo engine with the pace of a model: its steps sleep, so that both
processes of the one way and the three of the other have processors to themselves. Of each figure,
the median of the rounds counts. Ask on a machine where nothing else runs. Answers have different
lengths: with equal ones, all clients would end at once and ask at once, again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence

import server_page
from common import Spread
from scale_app import Served, application, plain_server

from mlc_llm.bench.client import Target
from mlc_llm.bench.run import at_concurrency
from mlc_llm.bench.workload import Workload

PROMPT_WORDS = (20, 40)
ANSWER_TOKENS = (60, 140)
WAYS = ("mlc_llm serve", "Ray Serve")


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


def table(found: Mapping[tuple[str, int], Sequence[tuple[float, float]]]) -> str:
    """Medians of the rounds, with the least and the greatest value."""
    lines = ["| way | clients | TTFT p50, ms | tokens/s |", "|---|---|---|---|"]
    for (way, clients), rounds in found.items():
        ttft, speed = (str(Spread.of(column)) for column in zip(*rounds, strict=True))
        lines.append(f"| {way} | {clients} | {ttft} | {speed} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="mock://echo?step_ms=20")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--answer", type=int, nargs=2, default=ANSWER_TOKENS, help="its tokens")
    parser.add_argument("--requests", type=int, default=4, help="of each client in a round")
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    args = parser.parse_args()
    config = {"max_num_sequence": 32}
    text = ";".join(f"{name}={value}" for name, value in config.items())
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with (
        plain_server(args.model, {"overrides": text, "mode": "server"}) as plain,
        application(args.model, engine_config=config) as app,
    ):
        for number in range(args.rounds + 1):
            for clients in args.clients:
                for way, served in zip(WAYS, (plain, app), strict=True):
                    one = measure(
                        served, clients, clients * args.requests, number, tuple(args.answer)
                    )
                    if number:  # the first round warms both
                        found.setdefault((way, clients), []).append(one)
    text = table(found)
    low, high = args.answer
    words = f"{args.rounds} rounds, answers of {low} to {high} tokens"
    print(f"{args.model}, {json.dumps(config)}, {words}")
    print(text)
    if args.write:
        server_page.write("", text, server_page.SCALE, "scale_ingress.py")


if __name__ == "__main__":
    main()
