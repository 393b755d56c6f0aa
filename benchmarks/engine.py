"""What the engine core costs, and what batching and the prefix cache gain.

    python benchmarks/engine.py [--rounds N] [--only NAME ...]

* `scheduling`: the share of a step with 32 running streams that is outside compiled functions, and
  the share outside the runner; the same with one stream
* `waiting`: the core's part of such a step while 10 to 10,000 requests wait
* `batching`: tokens a second of 32 streams compared with one stream; steps of both in turns
* `prefix`: time to the first token of a prompt whose first 1,000 tokens are known from an earlier
  prompt, compared with the earlier one
* `budget`: the longest time between two tokens of 8 running streams while a prompt of 2,000 tokens
  arrives, compared with the budget of a step
* `streamer`: tokens a second through TextStreamer, English, one token at a time

It prints medians with the least and the greatest value, and the target.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clocks import Clock, ClockedLibrary
from common import HERE, Spread, model_path, print_configuration
from ours import add_engine_options, open_runner, versions

from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch, BatchOutput, Runner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import TextStreamer

STREAMS = 32
PROMPT = 64
"""Tokens of a stream's prompt."""
STEPS = 30
"""Measured steps a round."""
WAITING = (10, 100, 1000, 10_000)
PREFIX, TAIL = 1000, 20
BESIDE, LONG = 8, 2000
"""Running streams, and the tokens of the prompt that arrives."""
CONFIG = EngineConfig(
    max_num_sequence=STREAMS,
    max_total_sequence_length=32768,
    max_single_sequence_length=2048,
    prefill_chunk_size=512,
)


class TimedRunner:
    """A runner that adds up the time of its steps."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter()
        try:
            return self._inner.run(batch)
        finally:
            self.seconds += time.perf_counter() - start


@dataclass(frozen=True)
class Step:
    """Seconds of one step: the whole, its part in the runner, its part in compiled functions."""

    whole: float
    runner: float
    compiled: float

    @property
    def core(self) -> float:
        """The part outside the runner."""
        return self.whole - self.runner


class Bench:
    """A core with the real model, with clocks for the runner and for its compiled functions."""

    def __init__(self, arguments: argparse.Namespace, model: Path) -> None:
        kernels, threads = arguments.kernels, arguments.threads
        runner = open_runner(model, kernels, threads, CONFIG, library=ClockedLibrary)
        self.kernels = runner.metadata.backend
        self._runner = TimedRunner(runner)
        self._vocab = runner.limits.vocab_size
        self.core = EngineCore(self._runner, open_model(str(model)).tokenizer, CONFIG)
        self._names = itertools.count()
        self._ids = itertools.count(1)

    def fresh_ids(self, count: int) -> list[int]:
        """A prompt that shares no beginning with another one."""
        first = next(self._ids)
        return [(7919 * i + 104729 * first) % self._vocab for i in range(count)]

    def add(self, ids: list[int], max_tokens: int = 1500) -> str:
        """Queue a greedy request that nothing but its length ends; returns its name."""
        name = str(next(self._names))
        debug = DebugConfig(ignore_eos=True)
        config = GenerationConfig(temperature=0, max_tokens=max_tokens, debug_config=debug)
        self.core.add_request(Request(name, [TokenData(ids)], config))
        return name

    def fill(self, streams: int) -> None:
        """So many running streams, all past their prompt."""
        self.core.reset()
        for _ in range(streams):
            self.add(self.fresh_ids(PROMPT))
        while len(self.core.step()) < streams:
            pass
        self.steps(3)

    def step(self) -> Step:
        """One step and where its time went."""
        runner, compiled = self._runner.seconds, Clock.seconds
        start = time.perf_counter()
        self.core.step()
        whole = time.perf_counter() - start
        return Step(whole, self._runner.seconds - runner, Clock.seconds - compiled)

    def steps(self, count: int) -> list[Step]:
        """So many steps in a row."""
        return [self.step() for _ in range(count)]

    def gap(self) -> float:
        """Milliseconds of a step in which every running stream gets a token."""
        start = time.perf_counter()
        outputs = self.core.step()
        took = time.perf_counter() - start
        assert len(outputs) >= BESIDE, "a stream got no token"
        return 1000 * took

    def first_token(self, ids: list[int]) -> float:
        """Seconds from adding a request to its only token."""
        start = time.perf_counter()
        name = self.add(ids, max_tokens=1)
        while self.core.has_request(name):
            self.core.step()
        return time.perf_counter() - start


Lines = Iterator[str]


def scheduling(bench: Bench, rounds: int) -> Lines:
    """Shares of a step, in per cent; each is a step's own, so slow moments cancel."""
    for streams, aim in ((STREAMS, 5), (1, 3)):
        bench.fill(streams)
        steps = bench.steps(rounds * STEPS)
        outside = Spread.of([100 * (1 - s.compiled / s.whole) for s in steps])
        core = Spread.of([100 * s.core / s.whole for s in steps])
        whole = Spread.of([1000 * s.whole for s in steps])
        yield f"step, ms, {streams:2d} streams           {whole}"
        yield f"outside compiled functions, %  {outside}   aim: at most {aim}"
        yield f"outside the runner, %          {core}"


def waiting(bench: Bench, rounds: int) -> Lines:
    """Rounds go up and down through the lengths, so that all see the same machine."""
    bench.fill(STREAMS)
    queue: list[str] = []
    found: dict[int, list[float]] = {length: [] for length in WAITING}
    for i in range(rounds):
        for length in WAITING if i % 2 == 0 else reversed(WAITING):
            while len(queue) < length:
                queue.append(bench.add([1]))
            while len(queue) > length:
                bench.core.abort_request(queue.pop())
            found[length] += [1e6 * step.core for step in bench.steps(STEPS // 3)]
    for length, values in found.items():
        yield f"core's part, µs, {length:6d} waiting  {Spread.of(values)}"
    medians = [statistics.median(values) for values in found.values()]
    yield f"greatest / least median        {max(medians) / min(medians):.2f}   aim: flat"
    bench.core.reset()


def batching(bench: Bench, single: Bench, rounds: int) -> Lines:
    """A step of each in turn."""
    bench.fill(STREAMS)
    single.fill(1)
    pairs = [(single.step().whole, bench.step().whole) for _ in range(rounds * STEPS)]
    one = Spread.of([1 / alone for alone, _ in pairs])
    many = Spread.of([STREAMS / together for _, together in pairs])
    yield f"one stream, tok/s              {one}"
    yield f"{STREAMS} streams, tok/s              {many}"
    yield f"ratio of the medians           {many.median / one.median:.2f}   aim: at least 4"


def prefix(bench: Bench, rounds: int) -> Lines:
    """The second prompt follows the first at once; every round has a prefix of its own."""
    bench.core.reset()
    first, second = [], []
    for _ in range(rounds + 1):
        shared = bench.fresh_ids(PREFIX)
        first.append(bench.first_token(shared + bench.fresh_ids(TAIL)))
        second.append(bench.first_token(shared + bench.fresh_ids(TAIL)))
    ratios = [a / b for a, b in zip(first[1:], second[1:], strict=True)]
    yield f"first prompt, ms               {Spread.of([1000 * s for s in first[1:]])}"
    yield f"second prompt, ms              {Spread.of([1000 * s for s in second[1:]])}"
    yield f"ratio                          {Spread.of(ratios)}   aim: at least 10"


def budget(bench: Bench, rounds: int) -> Lines:
    """Every round has streams of its own, so that their contexts are alike."""
    worst, high, first = [], [], []
    for _ in range(rounds + 1):
        bench.fill(BESIDE)
        bench.steps(STEPS)
        start = time.perf_counter()
        name = bench.add(bench.fresh_ids(LONG), max_tokens=1)
        gaps = []
        while bench.core.has_request(name):
            gaps.append(bench.gap())
        first.append(1000 * (time.perf_counter() - start))
        gaps += [bench.gap() for _ in range(3)]
        worst.append(max(gaps))
        high.append(statistics.quantiles(gaps, n=100, method="inclusive")[-1])
    aim = f"aim: at most {1.5 * CONFIG.prefill_time_budget_ms:.0f}"
    yield f"worst gap of a round, ms       {Spread.of(worst[1:])}   {aim}"
    yield f"99th percentile, ms            {Spread.of(high[1:])}   {aim}"
    yield f"first round's worst, ms        {worst[0]:.1f}   {aim}"
    yield f"the prompt's first token, ms   {Spread.of(first[1:])}"


def streamer(model: Path, rounds: int) -> Lines:
    """About 20,000 tokens a measurement."""
    tokenizer = open_model(str(model)).tokenizer
    text = (HERE / "public_domain.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text) * 8
    rates = []
    for _ in range(rounds + 1):
        stream = TextStreamer(tokenizer)
        start = time.perf_counter()
        length = sum(len(stream.put([one])) for one in ids) + len(stream.finish())
        rates.append(len(ids) / (time.perf_counter() - start))
        assert length == 8 * len(text)
    yield f"TextStreamer, tok/s            {Spread.of(rates[1:])}   aim: at least 100,000"


def main() -> None:
    names = ("scheduling", "waiting", "batching", "prefix", "budget", "streamer")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    arguments = parser.parse_args()
    model, rounds = model_path(arguments.model), arguments.rounds
    bench = Bench(arguments, model)
    print_configuration(
        "engine core",
        model=model.name,
        kernels=bench.kernels,
        threads=arguments.threads,
        prompts=f"{PROMPT} tokens, greedy, no end but length",
        rounds=rounds,
        **versions(),
    )
    parts: dict[str, Callable[[], Lines]] = {
        "scheduling": lambda: scheduling(bench, rounds),
        "waiting": lambda: waiting(bench, rounds),
        "batching": lambda: batching(bench, Bench(arguments, model), rounds),
        "prefix": lambda: prefix(bench, rounds),
        "budget": lambda: budget(bench, rounds),
        "streamer": lambda: streamer(model, rounds),
    }
    for name in arguments.only:
        print(name)
        for line in parts[name]():
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
