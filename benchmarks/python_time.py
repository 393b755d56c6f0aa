"""What Python takes of a step of one stream, and how much of that is waiting for the memory.

    python benchmarks/python_time.py [--model FILE.gguf] [--steps 200]

The engine core decodes. In some steps compiled code computes; in others it only reads so many
megabytes and gives what it gave last. So what Python does is the same, and the processor's caches
hold more or less of its code and its objects when it begins. Medians, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from clocks import Clock, ClockedLibrary
from common import model_path, print_configuration
from machine import written
from ours import ONE_SEQUENCE, add_engine_options, open_runner, versions

from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.request import Request

READ = (0, 1, 4, 16, 32, 64, 128)
"""Megabytes that a step reads in place of computing."""
ROUNDS, DEPTH = 4, 128
COMPUTED = -1


class Standing:
    """A compiled function, or what stands for it."""

    mode = COMPUTED
    """COMPUTED, or the megabytes that are read."""
    memory = np.zeros(0, np.float64)

    def __init__(self, inner: Callable[..., object]) -> None:
        self._inner = inner
        self._last: object = None

    def __call__(self, *args: object) -> object:
        if Standing.mode == COMPUTED or self._last is None:
            self._last = self._inner(*args)
        elif Standing.mode:
            Standing.memory[: Standing.mode << 17].sum()
        return self._last


class StandingLibrary(ClockedLibrary):
    """A library whose functions can be stood for."""

    def clock(self, inner: Callable[..., object]) -> Clock:
        return super().clock(Standing(inner))


def seconds_of(core: EngineCore, mode: int, steps: int) -> tuple[list[float], list[float]]:
    """Of each step: seconds of Python, and of compiled code or what stands for it."""
    Standing.mode = mode
    python, compiled = [], []
    for _ in range(steps):
        before, start = Clock.seconds, time.perf_counter()
        core.step()
        compiled.append(Clock.seconds - before)
        python.append(time.perf_counter() - start - compiled[-1])
    return python, compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    model, steps = model_path(arguments.model), arguments.steps // ROUNDS
    tokens = DEPTH + (len(READ) + 2) * ROUNDS * steps
    config = replace(
        ONE_SEQUENCE, max_total_sequence_length=2 * tokens, max_single_sequence_length=tokens
    )
    runner = open_runner(
        model, arguments.kernels, arguments.threads, config, library=StandingLibrary
    )
    print_configuration("Python in a step", model=model.name, **versions())
    Standing.memory = written(max(READ) << 20).view(np.float64)
    core = EngineCore(runner, open_model(str(model)).tokenizer, config)
    ids = [(7919 * i + 1000) % runner.limits.vocab_size for i in range(DEPTH)]
    debug = DebugConfig(ignore_eos=True)
    greedy = GenerationConfig(temperature=0.0, max_tokens=tokens - DEPTH, debug_config=debug)
    core.add_request(Request("0", [TokenData(ids)], greedy))
    while not core.step():
        pass
    modes = (COMPUTED, *READ)
    found: dict[int, tuple[list[float], list[float]]] = {mode: ([], []) for mode in modes}
    for _ in range(ROUNDS):
        for mode in modes:
            for one, more in zip(found[mode], seconds_of(core, mode, steps), strict=True):
                one.extend(more[2:])
    for mode, (python, compiled) in found.items():
        what = "the model" if mode == COMPUTED else f"a sum over {mode} MB" if mode else "nothing"
        ours, theirs = (statistics.median(one) * 1e6 for one in (python, compiled))
        print(f"beside {what}: {ours:.0f} us of Python, {theirs:.0f} us in compiled code")


if __name__ == "__main__":
    with computing_here():
        main()
