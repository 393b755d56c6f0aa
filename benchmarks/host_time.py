"""How long a device waits for the host: the engine core and the page tables over a device that is a
clock.

    python benchmarks/host_time.py [--streams 1 32 256] [--tokens-per-second 3000 40000 60000]

The core schedules, the runner places tokens in pages, fills the step up, and copies all numbers of
the step, as for a GPU; then a clock runs for as long as a GPU at that speed would compute. Each
line has, for steps that are started early and for steps that are not, the host's processor time a
token, and the time a token in which the device had nothing to do. No driver is called.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import Spread

from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.library.metadata import KVGroupInfo, KVInfo
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch, BatchOutput, Sampled
from mlc_llm.runtime.decode_rows import ChosenTokens, DecodeRows
from mlc_llm.runtime.decode_steps import StepSize
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.gathered import by_row
from mlc_llm.runtime.kv_cache import KVCache
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.prepared import Preparation
from mlc_llm.runtime.step_inputs import step_tables
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer

PAGE, VOCAB, CONTEXT = 16, 300, 4096
CHUNK = 2048
GROUP = KVGroupInfo(
    layers=tuple(range(32)), kv_heads=8, head_dim=128, kv_split=8, query_block=1,
    fast_query_block=1, window=None,
)  # fmt: skip


class ClockRunner:
    """A runner whose device takes a fixed time for each step."""

    def __init__(self, streams: int, seconds: float, *, overlaps: bool) -> None:
        pages = (streams + 1) * CONTEXT // PAGE
        self._cache = KVCache(
            KVInfo(PAGE, "float16", (GROUP,)), [pages], streams, lambda *given: None, (None,)
        )
        self.limits = RunnerLimits(
            num_pages=pages, page_size=PAGE, max_num_sequence=streams, max_batch_tokens=CHUNK,
            context_window=CONTEXT, vocab_size=VOCAB, overlaps=overlaps,
        )  # fmt: skip
        device = CpuDevice()
        step: Any = SimpleNamespace(page_counts=(pages,), page_size=PAGE, spare_state=0)
        self._sizes = {1 << i: StepSize(1 << i, step, device) for i in range(9)}
        self._plain = device.staging()
        metadata: Any = SimpleNamespace(is_fast=False, has_fast_tokens=False)
        fast = FastTokens(metadata, "exact")
        self._next = Preparation(self.limits, device, self._cache, fast, None)
        self._seconds, self._free_at = seconds, 0.0
        self.idle = 0.0

    @property
    def free_pages(self) -> int:
        return self._cache.free_pages

    def add_sequence(self, seq_id: int) -> None:
        self._cache.add(seq_id)

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        self._cache.fork(parent, child, length)

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        self._cache.rollback(seq_id, num_tokens)

    def remove_sequence(self, seq_id: int) -> None:
        self._cache.remove(seq_id)

    def kept_states(self, seq_id: int) -> Sequence[int]:
        return ()

    def load_adapter(self, *given: object) -> Any:
        raise NotImplementedError

    import_pages = export_pages = load_adapter

    def reset(self) -> None:
        self._cache.reset()

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def run(self, batch: Batch) -> BatchOutput:
        return self.collect(self.submit(batch))

    def submit(self, batch: Batch, after: object = None) -> tuple[Batch, float]:
        self._prepare(batch)
        now = time.perf_counter()
        self.idle += max(now - self._free_at, 0.0)
        self._free_at = max(self._free_at, now) + self._seconds
        return batch, self._free_at

    def collect(self, started: tuple[Batch, float]) -> BatchOutput:
        batch, ready_at = started
        while time.perf_counter() < ready_at:
            pass
        if isinstance(batch.rows, DecodeRows):
            return BatchOutput(ChosenTokens(np.full(len(batch.rows), 65, np.int32).tolist()))
        samples = [Sampled(65) for row in batch.rows for _ in row.samplings]
        return BatchOutput(by_row(batch.rows, samples, []))

    def _prepare(self, batch: Batch) -> None:
        """What the real runner does before it calls compiled code."""
        self._next.prepare(batch.rows)
        numbers, choice = self._next.numbers, self._next.choice
        if len(numbers.tokens) == len(choice.samplings):
            size = self._sizes[1 << (len(numbers.tokens) - 1).bit_length()]
            options, top_k, others = size.tables(choice)
            filled, tables = size.filled(numbers), [options, top_k, *others]
            staging = size.staged.staging
        else:
            filled, tables, staging = numbers, choice.tables, self._plain
        position = filled.placed.position
        staging.tensors(*step_tables(filled, position, position), *tables)


def core_of(runner: ClockRunner, streams: int, temperature: float) -> EngineCore:
    """A core in which all streams decode."""
    config = EngineConfig(
        max_num_sequence=streams, max_total_sequence_length=streams * CONTEXT,
        max_single_sequence_length=CONTEXT, prefill_chunk_size=CHUNK,
    )  # fmt: skip
    core = EngineCore(runner, Tokenizer.from_gguf_metadata(byte_tokenizer_metadata()), config)
    for i in range(streams):
        prompt = [TokenData([1 + i % 250, *range(40, 250), *range(40, 250), *range(40, 131)])]
        wanted = GenerationConfig(max_tokens=2000, temperature=temperature, top_p=0.9, seed=i)
        core.add_request(Request(str(i), prompt, wanted))
    while sum(len(one.delta_token_ids) for out in core.step() for one in out.unpack()[1]) < streams:
        pass
    return core


def measured(streams: int, speed: float, steps: int, temperature: float, *, overlaps: bool) -> Any:
    """Seconds a token: of a processor for the host alone, and in which the device waited for it."""
    found = []
    for seconds in (0.0, streams / speed):
        runner = ClockRunner(streams, seconds, overlaps=overlaps)
        core = core_of(runner, streams, temperature)
        for _ in range(10):
            core.step()
        runner.idle, start = 0.0, time.process_time()
        for _ in range(steps):
            core.step()
        used = time.process_time() - start
        found.append((runner.idle if seconds else used) / (steps * streams))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument(
        "--tokens-per-second", type=float, nargs="+", default=[3000, 40000, 60000],
        help="of the device, for each number of streams",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="in a round")
    args = parser.parse_args()
    for streams, speed in zip(args.streams, args.tokens_per_second, strict=True):
        for temperature in (0.0, 1.0):
            found: dict[tuple[bool, int], list[float]] = {}
            for _ in range(args.rounds):
                for overlaps in (False, True):
                    times = measured(streams, speed, args.steps, temperature, overlaps=overlaps)
                    for i, seconds in enumerate(times):
                        found.setdefault((overlaps, i), []).append(1e6 * seconds)
            for overlaps in (False, True):
                host, idle = (Spread.of(found[overlaps, i]) for i in range(2))
                words = "started early" if overlaps else "one by one   "
                print(
                    f"{streams} streams, device {speed:.0f} tok/s, temperature {temperature}, "
                    f"steps {words}: host {host}, device waits {idle} us a token"
                )


if __name__ == "__main__":
    main()
