"""Loads one model with our engine and measures on request: `ours_worker.py MODEL`.

Each line of JSON on standard input gets a line on standard output (see `peers/base.py`). Every
speed includes greedy sampling. MLC_PRECISION sets the engine's `precision`.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from clocks import Clock, ClockedLibrary
from ours import GREEDY, open_runner, precision_asked

from mlc_llm.errors import MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch, BatchRow, Runner
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.limits import DEFAULT_PREFILL_CHUNK
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.request import Request

if TYPE_CHECKING:
    from machine import Limits

CONTEXT = 8192
CONFIG = EngineConfig(
    max_num_sequence=64,
    max_total_sequence_length=2 * CONTEXT,
    max_single_sequence_length=CONTEXT,
    prefill_chunk_size=DEFAULT_PREFILL_CHUNK,
)


class Streams:
    """Sequences of a runner that decode together. Each begins with the token it sampled last."""

    def __init__(self, runner: Runner, count: int, depth: int) -> None:
        """`count` fresh sequences, each with its own prompt of `depth` tokens."""
        self._runner = runner
        runner.reset()
        self._last: list[int] = []
        for _ in range(count):
            self.begin(depth)

    def begin(self, depth: int) -> None:
        """One more sequence, with its own prompt of `depth` tokens."""
        seq_id = len(self._last)
        self._runner.add_sequence(seq_id)
        self._last.append(self._prompt(seq_id, depth))

    def _prompt(self, seq_id: int, depth: int) -> int:
        limits = self._runner.limits
        ids = [(7919 * i + 1000 + 31 * seq_id) % limits.vocab_size for i in range(depth)]
        most = limits.max_batch_tokens
        pieces = [ids[start : start + most] for start in range(0, depth, most)]
        for piece in pieces[:-1]:
            self._runner.run(Batch([BatchRow(seq_id, piece, (), len(piece))]))
        last = BatchRow(seq_id, pieces[-1], (GREEDY,), len(pieces[-1]))
        ((sampled,),) = self._runner.run(Batch([last])).samples
        return sampled.token_id

    def decode(self, steps: int, count: int | None = None) -> list[float]:
        """Seconds of each step of the first `count` sequences (of all, if None)."""
        return [self._step(range(count or len(self._last))) for _ in range(steps)]

    def _step(self, which: Sequence[int]) -> float:
        start = time.perf_counter()
        rows = [BatchRow(i, [self._last[i]], (GREEDY,)) for i in which]
        for i, samples in zip(which, self._runner.run(Batch(rows)).samples, strict=True):
            self._last[i] = samples[0].token_id
        return time.perf_counter() - start

    def fork(self, depth: int) -> None:
        """One more sequence: the first `depth` tokens of the first one."""
        self._runner.fork_sequence(0, len(self._last), depth)
        self._last.append(self._last[0])

    def each(self) -> list[float]:
        """Seconds of a step of each sequence alone."""
        return [self._step([i]) for i in range(len(self._last))]

    def forget(self, tokens: int, count: int = 1) -> None:
        """Roll back the first `count` sequences by `tokens` tokens."""
        for i in range(count):
            self._runner.rollback_sequence(i, tokens)


class Worker:
    """Each public method answers one kind of request and takes the request's other entries."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._threads = int(os.environ["MLC_NUM_THREADS"])
        self._config = replace(CONFIG, precision=precision_asked())
        self.runner = open_runner(model, None, self._threads, self._config, library=ClockedLibrary)
        self._limits: Limits | None = None
        self._plain: Callable[[], float] | None = None
        self._warm: set[tuple[int, bool, int]] = set()

    def about(self) -> dict[str, str | int]:
        """Kernels, and bytes of the packed weights."""
        params = self.runner.metadata.params
        sizes = [math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in params]
        return {"kernels": self.runner.metadata.backend, "packed": sum(sizes)}

    def measure(self, name: str, depth: int, tokens: int, streams: int) -> float:
        """Tokens a second (see `peers.base.Trial`). The first run comes after a shorter warm-up."""
        if (depth, tokens > 0, streams) not in self._warm:
            self._warm.add((depth, tokens > 0, streams))
            Streams(self.runner, streams, min(depth, 512)).decode(min(tokens, 4))
        start = time.perf_counter()
        running = Streams(self.runner, streams, depth)
        if not tokens:
            return streams * depth / (time.perf_counter() - start)
        return streams * tokens / sum(running.decode(tokens))

    def limits(self) -> dict[str, float | None]:
        """What the machine gives at this moment, by the names in `figures.py`."""
        if self._limits is None:
            # Imported here: it loads the compiler, which a served model does not have in memory.
            from machine import Limits

            self._limits = Limits()
        return self._limits.all()

    def prompt_attention(self, tokens: int) -> tuple[float, float]:
        """GMAC/s of one layer's exact attention of a prompt, and of plain products of float32."""
        # Imported here, as in `limits`.
        from prompt_attention import plain, prompt, shape_of

        from mlc_llm.backends.cpu.target import choose

        if self._plain is None:
            self._plain = plain()
        run = prompt(choose().isa, shape_of(self._model), tokens)
        turns = [(run(), self._plain()) for _ in range(4)][1:]
        ours, other = (statistics.median(found) for found in zip(*turns, strict=True))
        return ours, other

    def contexts(self, depths: Sequence[int], steps: int) -> list[float]:
        """Median seconds of a step of one stream at each depth. The first depth is the greatest.

        The depths are measured in turns, because the machine's speed changes more from minute to
        minute than the times of the depths differ.
        """
        running = Streams(self.runner, 1, depths[0])
        for depth in depths[1:]:
            running.fork(depth)
        turns = [running.each() for _ in range(steps + 2)][2:]
        return [statistics.median(found) for found in zip(*turns, strict=True)]

    def batches(self, streams: Sequence[int], depth: int, steps: int) -> list[float]:
        """Median seconds of a step with each number of streams, after `depth` tokens."""
        running = Streams(self.runner, max(streams), depth)
        found = []
        for count in streams:
            found.append(statistics.median(running.decode(steps + 1, count)[1:]))
            running.forget(steps + 1, count)
        return found

    def python_share(self, steps: int) -> list[float]:
        """For each step of the engine core with one stream: the share outside compiled code."""
        core = self._core(1, 128, steps + 8)
        while not core.step():
            pass
        shares = []
        for _ in range(steps + 4):
            before = Clock.seconds
            start = time.perf_counter()
            core.step()
            shares.append(1 - (Clock.seconds - before) / (time.perf_counter() - start))
        return shares[4:]

    def serve(self, streams: int, depth: int, tokens: int) -> dict[str, int]:
        """Serve so many requests at once to their end. Returns the memory of most steps (their
        median), the peak, and bytes of KV."""
        core, seen = self._core(streams, depth, tokens), [_memory("VmRSS")]
        while any(core.has_request(str(i)) for i in range(streams)):
            core.step()
            seen.append(_memory("VmRSS"))
        info = self.runner.metadata.kv
        page = sum(info.bytes_per_page(group) for group in info.groups)
        kv = streams * (depth + tokens) * page // info.page_size
        return {"rss": int(statistics.median(seen)), "peak": _memory("VmHWM"), "kv": kv}

    def _core(self, streams: int, depth: int, tokens: int) -> EngineCore:
        """A core with waiting requests. Each ends only by its length: no token stops one."""
        self.runner.reset()
        core = EngineCore(self.runner, open_model(str(self._model)).tokenizer, self._config)
        config = GenerationConfig(temperature=0, max_tokens=tokens)
        for i in range(streams):
            ids = [(7919 * j + 1000 + 31 * i) % self.runner.limits.vocab_size for j in range(depth)]
            core.add_request(Request(str(i), [TokenData(ids)], config))
        return core


def _memory(line: str) -> int:
    """Bytes of this process, mapped files included: `VmRSS`, now; `VmHWM`, the most at once."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (found,) = [one for one in status.splitlines() if one.startswith(line)]
    return int(found.split()[1]) * 1024


def main() -> None:
    # As the threads of engines and the command line do: this process never forks.
    with computing_here():
        worker = Worker(Path(sys.argv[1]))
        for line in sys.stdin:
            request = json.loads(line)
            try:
                value = getattr(worker, request.pop("do"))(**request)
                print(json.dumps({"value": value}), flush=True)
            except MLCError as error:
                print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
