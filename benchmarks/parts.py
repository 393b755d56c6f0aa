"""Where the time of a step goes: each compiled function's share, of decode and of prompts.

    python benchmarks/parts.py [--model FILE.gguf] [--prompt-precision fast] [--repeat N]

TVM's virtual machine tells before and after each call. Products are named by the shape of their
weights; in decode of one stream they have what they read a second. The telling itself takes time,
so a step before any is told is given first; what works for microseconds looks longer than it is.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tvm_ffi
from common import model_path, print_configuration
from ours import add_engine_options, add_precision_option, open_runner, versions
from ours_worker import Streams

from mlc_llm.runtime.batch import Batch, BatchRow
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
"""Share of a step from which a function has a line of its own."""


@dataclass
class Telling:
    """What the virtual machine told of one step."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    _started: list[tuple[str, float]] = field(default_factory=list)

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *given: Any) -> int:
        if before:
            name = self._named(name, given)
            self._started.append((name, time.perf_counter()))
        else:
            now = time.perf_counter()
            name, start = self._started.pop()
            self.seconds[name] += now - start
            self.calls[name] += 1
        return 0

    def _named(self, name: str, given: tuple[Any, ...]) -> str:
        """The function, all of the machine's own being one. A product's largest operand in decode
        is its matrix of 32-bit words."""
        if name.startswith("vm.builtin"):
            return "the machine's own (shapes, memory)"
        if name.startswith("matmul"):
            shapes = [g.shape for g in given if isinstance(g, tvm_ffi.Tensor)]
            self.bytes[name] += 4 * max(math.prod(map(int, shape)) for shape in shapes)
        return name


def told(runner: Any, step: Callable[[], None], repeat: int) -> tuple[float, list[Telling]]:
    """Median seconds of a step that tells nothing, and what `repeat` others told."""
    machine = runner._executable._vm
    plain, tellings = [], [Telling() for _ in range(repeat)]
    machine["set_instrument"](None)
    for _ in range(repeat + 1):
        start = time.perf_counter()
        step()
        plain.append(time.perf_counter() - start)
    for telling in tellings:
        machine["set_instrument"](tvm_ffi.convert(telling))
        step()
    return statistics.median(plain[1:]), tellings


def report(title: str, plain: float, tellings: list[Telling], *, reads: bool = False) -> None:
    """Functions by their time, medians over the steps; reads: what products read as well."""
    last = tellings[-1]
    times = {name: statistics.median(t.seconds[name] for t in tellings) for name in last.seconds}
    whole = sum(times.values())
    print(f"\n{title}: {plain * 1e3:.2f} ms a step; {whole * 1e3:.2f} ms in what is told of one")
    for name, seconds in sorted(times.items(), key=lambda each: -each[1]):
        if seconds >= LEAST * whole:
            speed = (
                f", {last.bytes[name] / seconds / 1e9:.1f} GB/s"
                if reads and last.bytes[name]
                else ""
            )
            calls = last.calls[name]
            print(f"  {seconds * 1e3:8.3f} ms {seconds / whole:6.1%} {calls:4d} x {name}{speed}")


def prompt_step(runner: Any, *, fast: bool) -> Callable[[], None]:
    """A prompt from its first token to the end of its last chunk."""
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
    model, precision = model_path(arguments.model), arguments.prompt_precision
    config = replace(CONFIG, prompt_precision=precision)
    runner = open_runner(model, arguments.kernels, arguments.threads, config)
    options = {
        "kernels": runner.metadata.backend,
        "threads": arguments.threads,
        "prompts": precision,
    }
    print_configuration("parts of a step", model=model.name, **options, **versions())
    for count in (1, 32):
        streams = Streams(runner, count, 128)
        step = lambda streams=streams: streams.decode(1)  # noqa: E731
        found = told(runner, step, arguments.repeat)
        report(f"decode, streams: {count}", *found, reads=count == 1)
    step = prompt_step(runner, fast=precision == "fast")
    report(f"prompt of {PROMPT}", *told(runner, step, arguments.repeat))


if __name__ == "__main__":
    main()
