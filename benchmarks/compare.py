"""Ours against its peers and against the machine: one run, all sides in turn, one table.

    python benchmarks/compare.py --peer-dir FOLDER [--quick] [--rounds N] [--minutes M]

Peers are installed and built inside FOLDER where they are not there yet (llama.cpp and its fork
need a C++ compiler; the first time takes half an hour or more); one that cannot be is reported and
left out. Models that are made lie there too. Machines are shared and drift, so in each round every
test runs on one side after the other, and what counts is the ratio of the medians, given with the
least and the greatest ratio of a round. `--report FILE` prints the table of an earlier run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from common import configuration
from compared_models import MODELS, OTHER_SIZES, model_file, sizes_of, write_random
from figures import AVX2, FAST, OURS
from ours_side import Ours
from peers import KINDS, make_peer
from peers.base import Missing, Side, Trial
from peers.llama_cpp import LlamaAvx2
from report import block, text, write_block
from rounds import Clock, Results, add_limits, attempt, speed_round

FIGURES = ("speed", "avx2", "context", "growth", "cold", "compile", "memory", "python")
SPEED_TESTS = (
    Trial("decode", 128, 128),
    Trial("prefill 512", 512),
    Trial("prefill 128", 128),
    Trial("32 streams", 64, 32, 32),
    Trial("8 streams", 64, 32, 8),
    Trial("prefill 2048", 2048),
)
QUICK_TESTS = SPEED_TESTS[:2] + SPEED_TESTS[3:4]
DEPTHS = (8160, 4096, 2048, 1024, 512, 128)
QUICK_DEPTHS = (2048, 512, 128)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
COLD_STARTS = 2
"""Cold starts of each side in a round."""


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-dir", type=Path, help="where peers and made models lie")
    parser.add_argument("--peers", nargs="*", choices=KINDS, default=list(KINDS), metavar="PEER")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=FIGURES, metavar="FIGURE")
    parser.add_argument("--rounds", type=int, help="5 if not given, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer tests: a look, not a result")
    parser.add_argument("--minutes", type=float, help="begin no test after so many")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--fast", nargs="+", default=[], metavar="NAME=VALUE",
        help="environment of our faster setting, measured beside the default",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("compare.json"), help="all samples")
    parser.add_argument("--plots", type=Path, help="folder for plots (needs matplotlib)")
    parser.add_argument("--docs", type=Path, help="document whose marked part is written anew")
    parser.add_argument("--report", type=Path, help="measure nothing, read an earlier --out")
    arguments = parser.parse_args(given)
    if arguments.report is None and arguments.peer_dir is None:
        parser.error("--peer-dir is needed")
    if any("=" not in one for one in arguments.fast):
        parser.error("--fast takes NAME=VALUE")
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    return arguments


class Comparison:
    """One run: the sides, the models' files, and what was found so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.results = Results(configuration=configuration())
        self.ours = Ours(arguments.threads)
        self.fast = None
        if arguments.fast:
            settings = dict(one.split("=", 1) for one in arguments.fast)
            self.fast = Ours(arguments.threads, FAST, settings)
        self.avx2 = Ours(arguments.threads, AVX2, {"MLC_LLM_KERNELS": "avx2"})
        folder, threads = arguments.peer_dir, arguments.threads
        self.peers = self._installed([make_peer(name, folder, threads) for name in arguments.peers])
        self.avx2_peers = (
            self._installed([LlamaAvx2(folder, threads)]) if self.wants("avx2") else []
        )
        self.files = self._model_files()
        self.clock = Clock(arguments.minutes)

    def wants(self, figure: str) -> bool:
        return figure in self.arguments.figures

    def _installed(self, sides: Sequence[Side]) -> list[Side]:
        made = []
        for side in sides:
            print(f"installing {side.name} where it is not there", flush=True)
            version = attempt(self.results, side.name, side.install)
            if version is not None:
                self.results.configuration[side.name] = version
                made.append(side)
        return made

    def _model_files(self) -> dict[str, Path]:
        quantize = self.arguments.peer_dir / "build" / "bin" / "llama-quantize"
        files = {}
        for name in self.arguments.models:
            tool = quantize if quantize.exists() else None
            files[name] = model_file(name, self.arguments.peer_dir / "models", tool)
            self.results.facts[f"sizes {name}"] = asdict(sizes_of(files[name]))
        return files

    def prepare(self) -> None:
        """Whatever ours compiles and packs, and what KL the faster setting has."""
        self.results.configuration["ours"] = self.ours.install()
        for name, file in self.files.items():
            print(f"preparing {name}", flush=True)
            for side in self._ours():
                side.prepare(file)
            if self.fast is not None and not name.startswith("1b"):
                self.results.facts[f"kl {name}"] = self.ours.divergence(file, self.fast)

    def _ours(self) -> list[Ours]:
        sides = [self.ours, *([self.fast] if self.fast else [])]
        return sides + ([self.avx2] if self.wants("avx2") and self.avx2_peers else [])

    def round(self, number: int) -> None:
        """Everything once, model by model; what the clock cuts off is left out."""
        parts = (self._speeds, self._curves, self._starts)
        for part, (name, file) in itertools.product(parts, self.files.items()):
            if not self.clock.over:
                part(name, file)
        if number == 0 and self.wants("compile") and not self.clock.over:
            self._first_starts()

    def _speeds(self, name: str, file: Path) -> None:
        sides: list[Any] = [self.ours, *([self.fast] if self.fast else []), *self.peers]
        tests = QUICK_TESTS if self.arguments.quick else SPEED_TESTS
        if self.wants("speed"):
            speed_round(self.results, name, [(side, file) for side in sides], tests, self.clock)
        if self.wants("avx2") and self.avx2_peers:
            pair: list[Any] = [self.avx2, *self.avx2_peers]
            speed_round(
                self.results, name, [(side, file) for side in pair], SPEED_TESTS[:2], self.clock
            )

    def _curves(self, name: str, file: Path) -> None:
        """What only ours is asked, in one process but for the peak memory."""
        add = self.results.add
        session = self.ours.open(file)
        if self.wants("python"):
            shares = session.ask({"do": "python_share", "steps": 64})
            add(name, "Python share", OURS, statistics.median(shares))
        if self.wants("growth"):
            asked = {"do": "batches", "streams": STREAMS, "depth": 64, "steps": 6}
            for count, seconds in zip(STREAMS, session.ask(asked), strict=True):
                add(name, f"step of streams {count}", OURS, seconds)
        if self.wants("context"):
            depths = QUICK_DEPTHS if self.arguments.quick else DEPTHS
            found = session.ask({"do": "contexts", "depths": depths, "steps": 12})
            for depth, seconds in zip(depths, found, strict=True):
                add(name, f"step at context {depth}", OURS, seconds)
            add_limits(self.results, name, "contexts", session)
        session.close()
        if self.wants("memory") and name.startswith("1b"):
            session = self.ours.open(file)
            served = session.ask({"do": "serve", "streams": 32, "depth": 128, "tokens": 64})
            session.close()
            add(name, "peak memory", OURS, served["peak"])
            self.results.facts["kv served"] = served["kv"]

    def _starts(self, name: str, file: Path) -> None:
        if not self.wants("cold"):
            return
        for side in (self.ours, *self.peers):
            for _ in range(COLD_STARTS):
                key = f"{side.name}, cold start, {name}"
                seconds = attempt(self.results, key, lambda s=side: s.cold_start(file))
                if seconds is not None:
                    self.results.add(name, "cold start", side.name, seconds)

    def _first_starts(self) -> None:
        """With an empty cache: the default model, then one of other sizes behind it."""
        other = self.arguments.peer_dir / "models" / "other-sizes.gguf"
        if not other.exists():
            write_random(other, OTHER_SIZES)
        default = model_file("default", other.parent, None)
        for _ in range(1 if self.arguments.quick else 3):
            with tempfile.TemporaryDirectory() as home:
                first = self.ours.cold_start(default, Path(home))
                before = len(list(Path(home).glob("**/kernels.o")))
                second = self.ours.cold_start(other, Path(home))
                after = len(list(Path(home).glob("**/kernels.o")))
            self.results.add("default", "first start", OURS, first)
            self.results.add("default", "first start, other sizes", OURS, second)
            self.results.facts["libraries for other sizes"] = after - before

    def run(self) -> None:
        self.prepare()
        for number in range(self.arguments.rounds):
            if self.clock.over:
                print(f"no time for more than {number} rounds", flush=True)
                break
            self.round(number)
            self.results.configuration["rounds"] = str(number + 1)
            print(f"round {number + 1} done, load {os.getloadavg()[0]:.1f}", flush=True)
            self.arguments.out.write_text(json.dumps(asdict(self.results), indent=1))


def main() -> None:
    arguments = parse()
    if arguments.report is not None:
        results = Results(**json.loads(arguments.report.read_text(encoding="utf-8")))
    else:
        comparison = Comparison(arguments)
        results = comparison.results
        results.configuration["threads"] = str(arguments.threads)
        results.configuration["date"] = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
        comparison.run()
        results.configuration["loads"] = ", ".join(f"{load:.1f}" for load in results.loads)
        arguments.out.write_text(json.dumps(asdict(results), indent=1))
    print(text(results))
    drawn: list[Path] = []
    if arguments.plots is not None:
        from plots import draw_all  # matplotlib is an extra

        drawn = draw_all(results, arguments.plots)
    if arguments.docs is not None:
        folder = arguments.docs.resolve().parent
        addresses = [os.path.relpath(plot.resolve(), folder) for plot in drawn]
        write_block(arguments.docs, block(results, addresses))


if __name__ == "__main__":
    try:
        main()
    except Missing as reason:
        raise SystemExit(str(reason)) from None
