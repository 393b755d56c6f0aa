"""Our server, as its clients see it.

    python benchmarks/server.py compare --llama-server PATH [--rounds N] [--requests N]
    python benchmarks/server.py overload [--seconds S] [--rounds N]
    python benchmarks/server.py cost [--rounds N]

compare: the same requests to our server and to llama-server, on the same file. The servers take
turns: each is started, asked, and ended in every round. The clients run in this process and share
the cores with the server, for both alike. A point is a number of clients at a time, each with a
prompt of random words and an answer of a fixed length. All answers are greedy.

overload: our server with so many clients that it is full and refuses nobody; then ten times as many
clients, which ask again half a second after they were refused. `/health` is called meanwhile.

cost: tokens a second of 32 streams, through the server and from the engine alone in a process of
its own; a request for one token on both; the time from the command to a socket that listens.

`--write` puts the table into docs/performance/server.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import server_page
from common import configuration, model_path, print_configuration
from ours import versions
from served import CONTEXT, PLACES, ours, theirs
from server_compare import compare, table, works
from server_cost import STREAMS, cost
from server_overload import PLACES as OVERLOADED_PLACES
from server_overload import overload


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    compared = commands.add_parser("compare", help="with llama-server")
    compared.add_argument("--llama-server", type=Path, required=True, help="the program")
    compared.add_argument("--requests", type=int, default=16, help="of a point, at least")
    compared.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    overloaded = commands.add_parser("overload", help="ten times as many clients as have room")
    overloaded.add_argument("--seconds", type=float, default=60.0, help="for each load")
    costs = commands.add_parser("cost", help="with the engine alone")
    for one, rounds in ((compared, 3), (overloaded, 1), (costs, 5)):
        one.add_argument("--rounds", type=int, default=rounds)
        one.add_argument("--model", help="a GGUF file (default: the default model)")
        one.add_argument("--threads", type=int, default=2)
        one.add_argument("--write", action="store_true", help="into docs/performance/server.md")
    return parser.parse_args(given)


def run(given: argparse.Namespace, model: Path) -> str:
    """Measure. Returns Markdown."""
    if given.command == "compare":
        mine = ours(model, given.threads)
        sides = [mine, theirs(given.llama_server, model, given.threads)]
        rows = compare(sides, given.rounds, works(given.requests, given.answer))
        return table([side.name for side in sides], rows, given.rounds)
    if given.command == "overload":
        queue = ("--max-queue", str(OVERLOADED_PLACES))
        side = ours(model, given.threads, OVERLOADED_PLACES, *queue)
        return overload(side, given.seconds, given.rounds)
    return cost(ours(model, given.threads, STREAMS), model, given.rounds)


def main() -> None:
    given = parse()
    model = model_path(given.model)
    facts = configuration()
    print_configuration(f"server, {given.command}", model=model.name, threads=given.threads)
    started = time.perf_counter()
    found = run(given, model)
    minutes = (time.perf_counter() - started) / 60
    head = (
        f"{time.strftime('%Y-%m-%d')}, {facts['cpu']}, {model.name}, {given.threads} threads, "
        f"apache-tvm {versions()['apache-tvm']}, load {facts['load']}"
    )
    if given.command == "compare":
        head += f"; {PLACES} places of {CONTEXT} tokens, answers of {given.answer}"
    content = f"{head}; {minutes:.0f} minutes.\n\n{found}"
    print(content)
    if given.write:
        server_page.write(given.command, content)


if __name__ == "__main__":
    main()
