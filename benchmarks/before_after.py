"""Is this tree slower than another one, and does it say the same? Both measured in turns.

    python benchmarks/before_after.py OTHER_TREE [--models default 1b-q4_0] [--rounds 5]

OTHER_TREE is a checkout in which `scripts/setup` ran (`git worktree add` makes one of any commit).
Each tree runs its own `ours_worker.py` with its own interpreter, in a new process each round, and
one at a time: of two that are open at once, one can have the better memory all the time (equal code
differed by 18 %). A cold start is a whole `mlc_llm generate` to its first byte, with the chat
template and without it (`--raw`). The figures are tokens a second (of cold starts: starts a
second). A ratio above 1 says that this tree is faster. Greedy texts of both trees are compared byte
for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from common import HERE, Spread, print_configuration, read_json
from compared_models import ALL_MODELS, model_file
from ours import versions
from peers.base import LineWorker, Trial

from mlc_llm.support.files import cache_root

TRIALS = (
    Trial("decode", 128, 128),
    Trial("prefill 512", 512),
    Trial("prefill 2048", 2048),
    Trial("32 streams", 64, 64, 32),
)
COLD_STARTS = {"cold start": (), "cold start, raw": ("--raw",)}
"""Name -> options of `mlc_llm generate`."""
REST = 1.0
"""Seconds before each measurement, in which threads go to sleep."""
PROMPTS, TOKENS = 6, 48


@dataclass(frozen=True)
class Tree:
    """One checkout with its interpreter."""

    root: Path
    threads: int

    @property
    def environment(self) -> dict[str, str]:
        """Caches apart, since one tree removes what another compiled."""
        home = cache_root() / "before_after" / self.root.name
        return {"MLC_NUM_THREADS": str(self.threads), "MLC_LLM_HOME": str(home)}

    def open(self, model: Path) -> LineWorker:
        """Its worker process with the model loaded."""
        command = [self._python, self.root / "benchmarks" / "ours_worker.py", model]
        worker = LineWorker(command, self.environment)
        worker.wait()
        return worker

    def generate(
        self, model: Path, prompt: str, tokens: int, options: Sequence[str] = ("--raw",)
    ) -> tuple[float, bytes]:
        """Starts a second (of a fresh process, to its first byte), and the greedy text."""
        command = [self._python, "-m", "mlc_llm", "generate", prompt, "--model", model]
        command += ["--temperature", "0", "--max-tokens", tokens, "--quiet", *options]
        environment = os.environ | self.environment
        # An installed package has its bytecode; here the first start writes it.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        start = time.perf_counter()
        with subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=self.root,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            speed = 1 / (time.perf_counter() - start)
            text = first + process.stdout.read()
        if process.returncode != 0:
            raise SystemExit(f"{self.root}: mlc_llm generate failed ({process.returncode})")
        return speed, text

    @property
    def _python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"


Samples = dict[str, tuple[list[float], list[float]]]
"""What was measured -> values of this tree, values of the other."""


def measure(trees: tuple[Tree, Tree], model: Path, rounds: int) -> Samples:
    """`rounds` values of each; which tree goes first changes from one value to the next."""
    names = [*(trial.name for trial in TRIALS), *COLD_STARTS]
    samples: Samples = {name: ([], []) for name in names}
    for turn in range(rounds):
        for side in _order(turn):
            with closing(trees[side].open(model)) as worker:
                for trial in TRIALS:
                    time.sleep(REST)
                    samples[trial.name][side].append(worker.measure(trial))
    for name, options in COLD_STARTS.items():
        for turn in range(rounds + 1):
            for side in _order(turn):
                speed, _ = trees[side].generate(model, "The sun rises in the east and", 1, options)
                if turn:
                    samples[name][side].append(speed)
    return samples


def _order(turn: int) -> tuple[int, int]:
    return (0, 1) if turn % 2 == 0 else (1, 0)


def different_texts(trees: tuple[Tree, Tree], model: Path) -> list[str]:
    """Prompts whose greedy texts differ."""
    prompts = read_json("prompts.json")["chat"][:PROMPTS]
    texts = {p: [tree.generate(model, p, TOKENS)[1] for tree in trees] for p in prompts}
    return [prompt for prompt, (mine, other) in texts.items() if mine != other]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--models", nargs="+", choices=ALL_MODELS, default=["default", "1b-q4_0"])
    parser.add_argument("--folder", type=Path, default=cache_root() / "compared")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for every sample")
    given = parser.parse_args()
    trees = (Tree(HERE.parent, given.threads), Tree(given.other.resolve(), given.threads))
    print_configuration("this tree by the other", rounds=given.rounds, **versions())
    found: dict[str, Samples] = {}
    for name in given.models:
        model = model_file(name, given.folder, None)
        found[name] = measure(trees, model, given.rounds)
        print(name)
        for what, sides in found[name].items():
            mine, other = (Spread.of(values) for values in sides)
            ratio = mine.median / other.median
            print(f"  {what:14s} {mine!s:28s} {other!s:28s} {ratio:.3f}", flush=True)
        differing = different_texts(trees, model)
        print(f"  greedy texts   {PROMPTS - len(differing)} of {PROMPTS} equal", flush=True)
        for prompt in differing:
            print(f"    differs: {prompt[:60]!r}")
    if given.json is not None:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
