"""Ours against llama.cpp: one sequence, the same file, the same minutes.

    python benchmarks/compare.py --peer-dir FOLDER [--model FILE.gguf] [--rounds N]

The peer is downloaded and built in FOLDER if it is not there (a C++ compiler is needed for that).
Machines are shared and drift, so the two take turns, each round in fresh processes, and what
counts is the ratio of the medians. A load well above the number of threads means that others
computed too: such a run proves nothing. See `single_stream.py` and `peer.py` for what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import peer
from common import HERE, Spread, model_path, print_configuration
from ours import add_engine_options, versions


def run_ours(model: Path, kernels: str | None, threads: int, repeat: int) -> dict[str, Any]:
    """One fresh process of `single_stream.py`: its kernels and samples."""
    options = ["--model", str(model), "--threads", str(threads), "--repeat", str(repeat)]
    options += ["--kernels", kernels] if kernels else []
    command = [sys.executable, str(HERE / "single_stream.py"), "--json", *options]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def medians(samples: dict[str, list[float]]) -> dict[str, int]:
    """Rounded, for the line that tells of a round."""
    return {name: round(Spread.of(values).median) for name, values in samples.items()}


def merge(rounds: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """All samples of all rounds, by test."""
    return {name: [value for one in rounds for value in one[name]] for name in rounds[0]}


def print_table(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """Medians, least to greatest, and the ratio of medians."""
    print(f"\n{'tok/s':12s}  {'ours':26s}  {'llama.cpp':26s}  ours / llama.cpp")
    for name, samples in theirs.items():
        left, right = Spread.of(ours[name]), Spread.of(samples)
        print(f"{name:12s}  {left!s:26s}  {right!s:26s}  {left.median / right.median:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--peer-dir", type=Path, required=True)
    parser.add_argument("--peer-model", type=Path, help="another file for the peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=2, help="measurements a round and test")
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    theirs_model = arguments.peer_model or model
    made = peer.programs(arguments.peer_dir)
    threads, repeat = arguments.threads, arguments.repeat
    kernels = run_ours(model, arguments.kernels, threads, 0)["kernels"]  # compiles if need be
    print_configuration(
        "single stream, interleaved",
        model=f"{model.name} (peer: {theirs_model.name})",
        threads=threads,
        rounds=f"{arguments.rounds}, {repeat} measurements each",
        kernels=kernels,
        peer=peer.describe(made, theirs_model),
        **versions(),
    )
    ours, theirs = [], []
    for number in range(arguments.rounds):
        theirs.append(peer.measure(made, theirs_model, threads, repeat))
        ours.append(run_ours(model, kernels, threads, repeat)["samples"])
        print(f"round {number + 1}: ours {medians(ours[-1])}", end=", ")
        print(f"llama.cpp {medians(theirs[-1])}, load {os.getloadavg()[0]:.1f}", flush=True)
    print_table(merge(ours), merge(theirs))


if __name__ == "__main__":
    main()
