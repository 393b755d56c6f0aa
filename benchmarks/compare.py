"""Compares our engine with its peers and with the machine's limits: one run, one table.

    python benchmarks/compare.py --peer-dir FOLDER [--minutes M] [--plots FOLDER] [--docs FILE]

measures every row of the table. Missing peers are installed and built in FOLDER (llama.cpp and its
fork need a C++ compiler; the first time takes half an hour or more). Models that the script makes
are there too. The speed of a shared machine changes, so in each round every test runs on all sides
in turn. The result is the ratio of the medians, with the least and the greatest ratio of a round.
What a side cannot do is reported and left out. If `--minutes` or an interrupt ends a run early, it
reports what it has measured. `--report FILE` prints the table of an earlier run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from common import configuration
from compared_models import (
    ALL_MODELS,
    MODELS,
    OTHER_SIZES,
    model_file,
    sizes_of,
    write_random,
)
from figure_rows import (
    AVX2,
    AVX_VNNI,
    DEFAULT,
    DEFAULT_Q4,
    FAST,
    IK_LLAMA,
    LLAMA,
    ONE_B,
)
from figures import CONTEXT, PROMPT_ATTENTION, SGEMM, STREAMS
from ours import PRECISION_VARIABLE
from ours_side import Ours
from peers import KINDS, make_peer
from peers.base import LineWorker, Missing, Side, Trial
from peers.llama_cpp import LlamaAvx2, LlamaAvxVnni
from precision_costs import add_costs
from real_shapes import REAL_SHAPES
from report import block, marked_text, text, write_block
from rounds import OURS, Clock, Results, add_limits, attempt, speed_round

from mlc_llm.backends.cpu.target import KERNELS_VARIABLE, missing_features

FIGURES = (
    "speed", "kl", "attention", "avx2", "avx-vnni", "context", "growth", "cold", "compile",
    "memory", "python",
)  # fmt: skip
NARROW = {"avx2": (AVX2, LlamaAvx2), "avx-vnni": (AVX_VNNI, LlamaAvxVnni)}
"""Figures of kernels without AVX-512, by the kernels: our side, and the peer."""
SPEED_TESTS = (
    Trial("decode", 128, 128),
    Trial("prefill 512", 512),
    Trial("32 streams", 64, 32, 32),
    Trial("prefill 2048", 2048, peers=False),
)
QUICK_TESTS = SPEED_TESTS[:3]
REAL_TESTS = SPEED_TESTS[:2]
"""Of models of real shapes, which are measured beside these peers."""
REAL_PEERS = (LLAMA, IK_LLAMA)
DEPTHS = (8160, 4096, 2048, 1024, 512, 128)
QUICK_DEPTHS = (2048, 512, 128)
COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of streams."""
COLD_STARTS = 2
"""Cold starts of each side in a round."""
SLOW_START = 5.0
"""Seconds. A side that takes longer to start starts only once in a run."""
ROWS_OF = {"speed": ALL_MODELS, "cold": (DEFAULT,), "kl": (DEFAULT, DEFAULT_Q4)}
"""Figure -> the models it is measured on, if these are not `FIGURE_MODELS`."""
FIGURE_MODELS = (DEFAULT, ONE_B)
FASTER = ("fast-prompts", "fast")
"""Precisions that are measured beside the default one."""


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-dir", type=Path, help="where peers and made models lie")
    parser.add_argument("--peers", nargs="*", choices=KINDS, default=list(KINDS), metavar="PEER")
    parser.add_argument("--models", nargs="+", choices=ALL_MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=FIGURES, metavar="FIGURE")
    parser.add_argument("--rounds", type=int, help="5 if not given, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer tests: a look, not a result")
    parser.add_argument("--minutes", type=float, help="begin no test after so many")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--precisions", nargs="*", choices=FASTER, default=FASTER, metavar="PRECISION",
        help="measured beside exact (%(default)s); nothing: none",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("compare.json"), help="all samples")
    parser.add_argument("--plots", type=Path, help="folder for plots (needs matplotlib)")
    parser.add_argument("--docs", type=Path, help="document whose marked part is written anew")
    parser.add_argument("--report", type=Path, help="measure nothing, read an earlier --out")
    arguments = parser.parse_args(given)
    if arguments.report is None and arguments.peer_dir is None:
        parser.error("--peer-dir is needed")
    if arguments.plots is not None and find_spec("matplotlib") is None:
        parser.error("--plots needs matplotlib: pip install -e .[benchmarks]")
    try:
        if arguments.docs is not None:
            marked_text(arguments.docs)
    except (OSError, ValueError) as error:
        parser.error(f"--docs: {error}")
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    return arguments


class Comparison:
    """One run: the sides, the files of the models, and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.results = Results(configuration=configuration())
        self.ours = Ours(arguments.threads)
        self.faster = [
            Ours(arguments.threads, f"ours, {precision}", {PRECISION_VARIABLE: precision})
            for precision in arguments.precisions
        ]
        folder, threads = arguments.peer_dir, arguments.threads
        self.peers = self._installed([make_peer(name, folder, threads) for name in arguments.peers])
        self.narrow = {
            kernels: (Ours(threads, title, {KERNELS_VARIABLE: kernels}), peer)
            for kernels, (title, kind) in NARROW.items()
            if self.wants(kernels) and not missing_features(kernels)
            for peer in self._installed([kind(folder, threads)])
        }
        """By kernels: our side, and the peer."""
        self.files = self._model_files()
        self.clock = Clock(arguments.minutes)

    def wants(self, figure: str, model: str | None = None) -> bool:
        """Whether a figure is measured; on this model, if one is given."""
        named = model is None or model in ROWS_OF.get(figure, FIGURE_MODELS)
        return named and figure in self.arguments.figures

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
        files = {}
        for name in self.arguments.models:
            path = attempt(self.results, f"model {name}", partial(self._model_file, name))
            if path is not None:
                files[name] = path
                self.results.facts[f"sizes {name}"] = asdict(sizes_of(path))
        return files

    def _model_file(self, name: str) -> Path:
        quantize = self.arguments.peer_dir / "build" / "bin" / "llama-quantize"
        tool = quantize if quantize.exists() else None
        return model_file(name, self.arguments.peer_dir / "models", tool)

    def prepare(self) -> None:
        """Compile and pack for our sides, and measure the KL of all sides from exact logits."""
        self.results.configuration["ours"] = self.ours.install()
        for name, file in self.files.items():
            print(f"preparing {name}", flush=True)
            for side in self._ours(name):
                attempt(self.results, f"{side.name} on {name}", partial(side.prepare, file))
            if self.wants("kl", name) and self._can(self.ours, name):
                sides = [*(one for one in self.faster if self._can(one, name)), *self.peers]
                measure = partial(add_costs, self.results, name, file, self.ours, sides)
                attempt(self.results, f"KL, {name}", measure)

    def _can(self, side: Side, name: str) -> bool:
        return f"{side.name} on {name}" not in self.results.missing

    def _precisions(self, model: str) -> list[Ours]:
        """Exact and the others. `fast` has no row of models of real shapes."""
        faster = [one for one in self.faster if model not in REAL_SHAPES or one.name != FAST]
        return [self.ours, *faster]

    def _ours(self, model: str) -> list[Ours]:
        narrow = [ours for kernels, (ours, _) in self.narrow.items() if self.wants(kernels, model)]
        return self._precisions(model) + narrow

    def round(self, number: int) -> None:
        """Measure everything once, model by model. After the end of the clock, nothing begins."""
        parts = (self._speeds, self._curves, self._starts)
        for part, (name, file) in itertools.product(parts, self.files.items()):
            if not self.clock.over:
                part(name, file)
                self.results.loads.append(os.getloadavg()[0])
                self.save()
        for _ in range(self._first_starts_wanted(number)):
            if not self.clock.over:
                attempt(self.results, "ours, first start", self._first_start)

    def _speeds(self, name: str, file: Path) -> None:
        sides: list[Side] = [*self._precisions(name), *self.peers]
        tests: Sequence[Trial] = QUICK_TESTS if self.arguments.quick else SPEED_TESTS
        if name in REAL_SHAPES:
            sides = [one for one in sides if one not in self.peers or one.name in REAL_PEERS]
            tests = REAL_TESTS
        if self.wants("speed", name):
            peers = {side.name for side in self.peers}
            sided = [(side, file) for side in sides]
            speed_round(self.results, name, sided, tests, self.clock, peers=peers)
        for kernels, pair in self.narrow.items():
            if self.wants(kernels, name):
                sided = [(side, file) for side in pair]
                speed_round(self.results, name, sided, SPEED_TESTS[:2], self.clock)

    def _curves(self, name: str, file: Path) -> None:
        """What only our side measures, in one process; the peak memory has its own process."""
        wanted = {
            "attention": self._attention,
            "python": self._shares,
            "growth": self._growth,
            "context": self._contexts,
        }
        asked = [(figure, ask) for figure, ask in wanted.items() if self.wants(figure, name)]
        if asked and self._can(self.ours, name):
            with closing(self.ours.open(file)) as session:
                for figure, ask in asked:
                    attempt(self.results, f"ours, {figure}, {name}", partial(ask, name, session))
        if self.wants("memory") and name.startswith("1b") and self._can(self.ours, name):
            attempt(self.results, f"ours, memory, {name}", partial(self._memory, name, file))

    def _shares(self, name: str, session: LineWorker) -> None:
        shares = session.ask({"do": "python_share", "steps": 64})
        self.results.add(name, "Python share", OURS, statistics.median(shares))

    def _attention(self, name: str, session: LineWorker) -> None:
        for what in PROMPT_ATTENTION:
            found = session.ask({"do": "prompt_attention", "tokens": int(what.split()[-1])})
            for side, rate in zip((OURS, SGEMM), found, strict=True):
                self.results.add(name, f"{what}, GMAC/s", side, rate)

    def _growth(self, name: str, session: LineWorker) -> None:
        found = session.ask({"do": "batches", "streams": COUNTS, "depth": 64, "steps": 6})
        for count, seconds in zip(COUNTS, found, strict=True):
            self.results.add(name, f"{STREAMS}{count}", OURS, seconds)

    def _contexts(self, name: str, session: LineWorker) -> None:
        depths = QUICK_DEPTHS if self.arguments.quick else DEPTHS
        found = session.ask({"do": "contexts", "depths": depths, "steps": 12})
        for depth, seconds in zip(depths, found, strict=True):
            self.results.add(name, f"{CONTEXT}{depth}", OURS, seconds)
        add_limits(self.results, name, "contexts", session)

    def _memory(self, name: str, file: Path) -> None:
        """Peak memory, in a fresh process that does nothing else."""
        with closing(self.ours.open(file)) as session:
            served = session.ask({"do": "serve", "streams": 32, "depth": 128, "tokens": 64})
        self.results.facts["kv served"] = served["kv"]
        self.results.add(name, "peak memory", OURS, served["peak"])

    def _starts(self, name: str, file: Path) -> None:
        if not self.wants("cold", name):
            return
        for side in (self.ours, *self.peers):
            for _ in range(COLD_STARTS):
                key = f"{side.name}, cold start, {name}"
                known = self.results.median(name, "cold start", side.name) or 0.0
                if key in self.results.missing or not self._can(side, name) or known > SLOW_START:
                    break
                seconds = attempt(self.results, key, partial(side.cold_start, file))
                if seconds is not None:
                    self.results.add(name, "cold start", side.name, seconds)

    def _first_starts_wanted(self, number: int) -> int:
        """How many first starts this round measures: only the first round has some."""
        if number > 0 or not self.wants("compile"):
            return 0
        return 1 if self.arguments.quick else 3

    def _first_start(self) -> None:
        """Start with an empty cache: first the default model, then one of other sizes."""
        other = self.arguments.peer_dir / "models" / "other-sizes.gguf"
        if not other.exists():
            write_random(other, OTHER_SIZES)
        default = model_file("default", other.parent, None)
        with tempfile.TemporaryDirectory() as home:
            first = self.ours.cold_start(default, Path(home))
            before = len(list(Path(home).glob("**/vm.bin")))
            second = self.ours.cold_start(other, Path(home))
            after = len(list(Path(home).glob("**/vm.bin")))
        self.results.facts["libraries for other sizes"] = after - before
        self.results.add("default", "first start", OURS, first)
        self.results.add("default", "first start, other sizes", OURS, second)

    def save(self) -> None:
        self.arguments.out.write_text(json.dumps(asdict(self.results), indent=1))

    def run(self) -> None:
        """Run all rounds, or those that there is time for. An interrupt ends them early."""
        try:
            self.prepare()
            for number in range(self.arguments.rounds):
                if self.clock.over:
                    print(f"no time for more than {number} rounds", flush=True)
                    break
                start = time.monotonic()
                self.results.configuration["rounds"] = f"{number + 1}, the last not whole"
                self.round(number)
                if not self.clock.over:
                    self.results.configuration["rounds"] = str(number + 1)
                minutes, load = (time.monotonic() - start) / 60, os.getloadavg()[0]
                print(f"round {number + 1} took {minutes:.0f} minutes, load {load:.1f}", flush=True)
        except KeyboardInterrupt:
            print("interrupted: this is what there is", flush=True)
        if loads := self.results.loads:
            span = f"{min(loads):.1f} to {max(loads):.1f}, ours included"
            self.results.configuration["load meanwhile"] = span
        self.save()


def measured(arguments: argparse.Namespace) -> Results:
    """The results of a whole run."""
    comparison = Comparison(arguments)
    described = comparison.results.configuration
    described["threads"] = str(arguments.threads)
    described["precisions"] = " ".join(("exact", *arguments.precisions))
    described["date"] = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    comparison.run()
    return comparison.results


def main() -> None:
    arguments = parse()
    if arguments.report is not None:
        results = Results(**json.loads(arguments.report.read_text(encoding="utf-8")))
    else:
        # SIGTERM ends the run like an interrupt, so that its results are reported.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        results = measured(arguments)
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
