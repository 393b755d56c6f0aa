"""Where the time of a step goes: each compiled function's share, of decode and of prompts.

    python benchmarks/parts.py [--model FILE.gguf] [--precision fast-prompts] [--repeat N]

TVM's virtual machine calls an instrument before and after each function. Products are named by the
shape of their weights; for decode with one stream, the bytes that they read a second are printed
too. The instrument itself takes time, so the time of a step without it is printed first. Functions
of a few microseconds look longer than they are.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import tvm_ffi
from common import model_path, print_configuration
from ours import add_engine_options, add_precision_option, open_runner, versions
from ours_worker import Streams

from mlc_llm.runtime.batch import Batch, BatchRow, Runner
from mlc_llm.runtime.library import Library
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import DEFAULT_PREFILL_CHUNK

CONFIG = EngineConfig(
    max_num_sequence=64,
    max_total_sequence_length=16384,
    max_single_sequence_length=4096,
    prefill_chunk_size=DEFAULT_PREFILL_CHUNK,
)
PROMPT, OTHER = 512, 99
"""Tokens of the prompt that is measured, and its sequence."""
LEAST = 0.01
"""A function gets its own line if it takes at least this share of a step."""


@dataclass
class Record:
    """The functions of one step: an instrument of the virtual machine."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    _started: list[tuple[str, float]] = field(default_factory=list)

    def __call__(
        self, _function: object, name: str, before: bool, _result: object, *given: object
    ) -> int:
        if before:
            name = self._named(name, given)
            self._started.append((name, time.perf_counter()))
        else:
            now = time.perf_counter()
            name, start = self._started.pop()
            self.seconds[name] += now - start
            self.calls[name] += 1
        return 0

    def _named(self, name: str, given: tuple[object, ...]) -> str:
        """The name of the function; one name for all functions of the machine itself. In decode,
        the largest operand of a product is its matrix of 32-bit words."""
        if name.startswith("vm.builtin"):
            return "the machine's own (shapes, memory)"
        if name.startswith("matmul"):
            shapes = [g.shape for g in given if isinstance(g, tvm_ffi.Tensor)]
            self.bytes[name] += 4 * max(math.prod(map(int, shape)) for shape in shapes)
        return name


def recorded(
    library: Library, step: Callable[[], object], repeat: int
) -> tuple[float, list[Record]]:
    """Median seconds of a step without an instrument, and the records of `repeat` other steps."""
    set_instrument = library["set_instrument"]
    plain, records = [], [Record() for _ in range(repeat)]
    set_instrument(None)
    for _ in range(repeat + 1):
        start = time.perf_counter()
        step()
        plain.append(time.perf_counter() - start)
    for record in records:
        set_instrument(tvm_ffi.convert(record))
        step()
    return statistics.median(plain[1:]), records


def report(title: str, plain: float, records: list[Record], *, reads: bool = False) -> None:
    """Print functions by their time, medians over the steps. reads: print what products read."""
    last = records[-1]
    times = {name: statistics.median(one.seconds[name] for one in records) for name in last.seconds}
    whole = sum(times.values())
    print(f"\n{title}: {plain * 1e3:.2f} ms a step; {whole * 1e3:.2f} ms in recorded functions")
    for name, seconds in sorted(times.items(), key=lambda each: -each[1]):
        if seconds >= LEAST * whole:
            speed = (
                f", {last.bytes[name] / seconds / 1e9:.1f} GB/s"
                if reads and last.bytes[name]
                else ""
            )
            calls = last.calls[name]
            print(f"  {seconds * 1e3:8.3f} ms {seconds / whole:6.1%} {calls:4d} x {name}{speed}")


def prompt_step(runner: Runner, *, fast: bool) -> Callable[[], object]:
    """A function that runs a prompt from its first to its last token."""
    ids = [(7919 * i + 1000) % runner.limits.vocab_size for i in range(PROMPT)]

    def step() -> None:
        runner.add_sequence(OTHER)
        runner.run(Batch([BatchRow(OTHER, ids, (), fast * PROMPT)]))
        runner.remove_sequence(OTHER)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    add_precision_option(parser)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    model, precision = model_path(arguments.model), arguments.precision
    config = replace(CONFIG, precision=precision)
    libraries: list[Library] = []

    def open_library(folder: Path) -> Library:
        libraries.append(Library(folder))
        return libraries[-1]

    runner = open_runner(model, arguments.kernels, arguments.threads, config, library=open_library)
    library = libraries[-1]
    options = {
        "kernels": runner.metadata.backend,
        "threads": arguments.threads,
        "prompts": precision,
    }
    print_configuration("parts of a step", model=model.name, **options, **versions())
    for count in (1, 32):
        decode = partial(Streams(runner, count, 128).decode, 1)
        found = recorded(library, decode, arguments.repeat)
        report(f"decode, streams: {count}", *found, reads=count == 1)
    prompt = prompt_step(runner, fast=precision != "exact")
    report(f"prompt of {PROMPT}", *recorded(library, prompt, arguments.repeat))


if __name__ == "__main__":
    main()
