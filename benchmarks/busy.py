"""Decoding beside other programs that want the cores: ours and peers in turns.

    python benchmarks/busy.py [--model FILE.gguf] [--peers llama.cpp,OpenVINO --peer-dir FOLDER]

Each program is a loop without an end that may run on every core; there are none, one, two and four.
Each side computes with `--threads` threads: one stream that decodes behind 128 tokens. Tokens a
second: medians of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common import Spread, model_path, print_configuration
from ours_side import Ours
from peers import make_peer
from peers.base import Session, Side, Trial

BESIDE = (0, 1, 2, 4)
"""Programs."""
DEPTH, TOKENS = 128, 32


@contextmanager
def programs(count: int) -> Iterator[None]:
    """So many run meanwhile."""
    loop = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def measured(session: Session, count: int) -> float:
    """Tokens a second; the first ones come before the programs."""
    session.measure(Trial("warm", DEPTH, 8))
    with programs(count):
        return session.measure(Trial("busy", DEPTH, TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="", help="their names, with commas between them")
    parser.add_argument("--peer-dir", type=Path)
    arguments = parser.parse_args()
    model, names = model_path(arguments.model), [one for one in arguments.peers.split(",") if one]
    if names and arguments.peer_dir is None:
        parser.error("--peers needs --peer-dir, where they are installed")
    sides: list[Side] = [Ours(arguments.threads)]
    sides += [make_peer(one, arguments.peer_dir, arguments.threads) for one in names]
    installed = {side.name: side.install() for side in sides}
    print_configuration("Decoding beside other programs", model=model.name, **installed)
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(arguments.rounds):
        for count in BESIDE:
            for side in sides:
                with closing(side.open(model)) as session:
                    session.wait()
                    found.setdefault((side.name, count), []).append(measured(session, count))
    print("| programs | " + " | ".join(side.name for side in sides) + " |")
    print("|---" * (1 + len(sides)) + "|")
    for count in BESIDE:
        cells = [str(Spread.of(found[side.name, count])) for side in sides]
        print(f"| {count} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
