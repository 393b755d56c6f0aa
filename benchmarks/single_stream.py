"""Speed of one sequence in a fresh process: decode and prefill, greedy sampling included.

    python benchmarks/single_stream.py [--repeat N] [--precision fast] [--ranks 2] [--json]

`decode` is 128 tokens after 128 tokens of context. `prefill N` is a prompt of N tokens, up to its
first sampled token. The results are tokens a second. Each test runs once before it is measured.
`decode here` computes on the calling thread, as the command line and threaded engines do; `decode`
hands each step to a thread of ours, as `SyncMLCEngine` does.
With another `--precision` than `exact`, prompts are also measured in this setting, in turns with
exact ones.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from common import Spread, model_path, print_configuration
from ours import (
    ONE_SEQUENCE,
    SEQUENCE,
    add_engine_options,
    add_precision_option,
    advance,
    open_runner,
    versions,
)

from mlc_llm.runtime.batch import Runner
from mlc_llm.runtime.compute_thread import computing_here

DEPTH = 128
"""Tokens of context before decode is measured."""
DECODE = 128


def prompt_ids(count: int, vocab_size: int) -> list[int]:
    """Different ids. Their meaning does not matter for speed."""
    return [(7919 * i + 1000) % vocab_size for i in range(count)]


def fresh(runner: Runner) -> None:
    """Reset the runner and add one empty sequence."""
    runner.reset()
    runner.add_sequence(SEQUENCE)


def prefill(runner: Runner, count: int, *, fast: bool = False) -> float:
    """Tokens a second of a prompt. With fast=False, a fast runner computes it exactly too."""
    fresh(runner)
    ids = prompt_ids(count, runner.limits.vocab_size)
    start = time.perf_counter()
    advance(runner, ids, is_prompt=fast)
    return count / (time.perf_counter() - start)


def decode(runner: Runner) -> float:
    """Tokens a second. Each token is the one that was sampled last."""
    fresh(runner)
    token = advance(runner, prompt_ids(DEPTH, runner.limits.vocab_size))
    start = time.perf_counter()
    for _ in range(DECODE):
        token = advance(runner, [token])
    return DECODE / (time.perf_counter() - start)


def decode_here(runner: Runner) -> float:
    """As `decode`; no step is handed to another thread."""
    with computing_here():
        return decode(runner)


MEASURES: dict[str, Callable[[Runner], float]] = {
    "prefill 128": lambda runner: prefill(runner, 128),
    "prefill 512": lambda runner: prefill(runner, 512),
    "decode": decode,
    "decode here": decode_here,
}


IN_TURNS = {
    f"prefill {count}{' fast' if fast else ''}": partial(prefill, count=count, fast=fast)
    for count in (128, 512, 2048)
    for fast in (False, True)
}


def measure(runner: Runner, repeat: int) -> dict[str, list[float]]:
    """All measures, each `repeat` times after a run that is not counted."""
    return {name: [one(runner) for _ in range(repeat + 1)][1:] for name, one in MEASURES.items()}


def measure_in_turns(runner: Runner, repeat: int) -> dict[str, list[float]]:
    """Exact and fast prompts, each `repeat` times after a run that is not counted."""
    rounds = [[one(runner) for one in IN_TURNS.values()] for _ in range(repeat + 1)][1:]
    return dict(zip(IN_TURNS, map(list, zip(*rounds, strict=True)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    add_precision_option(parser)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="each with `--threads`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    ranks = arguments.ranks
    config = replace(ONE_SEQUENCE, precision=arguments.precision, tensor_parallel_shards=ranks)
    runner = open_runner(model, arguments.kernels, arguments.threads, config)
    samples = measure(runner, arguments.repeat)
    if config.precision != "exact":
        samples |= measure_in_turns(runner, arguments.repeat)
    options = {"kernels": runner.metadata.backend, "threads": arguments.threads, "ranks": ranks}
    if arguments.json:
        print(json.dumps(options | {"samples": samples}))
        return
    print_configuration("single stream, tok/s", model=model.name, **options, **versions())
    for name, values in samples.items():
        print(f"{name:18s} {Spread.of(values)}")


if __name__ == "__main__":
    main()
