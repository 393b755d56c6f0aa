"""Looks for a needle in long texts, and compares the memory that was taken with `fit`'s word.

    python benchmarks/needle.py [--kv-cache-dtype int8] [--lengths 2048 131072] [--depths 0 0.5 1]

The model is `retrieval_model.py`. For each length and depth, the greedy answer has to be the rest
of the needle. The engine plans its memory for the longest text, as `mlc_llm fit` shows it; the
process may take no more than that plan beyond what it had before the engine was opened. The exit
code is 1 if an answer is wrong, or the memory more than planned.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from common import print_configuration
from ours import add_kv_cache_option, greedy, open_runner
from retrieval_model import CONTEXT, expected, prompt, write_retrieval_model

from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import complete_config
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.memory import look_at_memory, model_size


def opened(path: Path, asked: EngineConfig) -> tuple[ModelRunner, int]:
    """The model with memory for one sequence, and the bytes that its plan has."""
    size = model_size(open_model(str(path)), asked.kernels, asked.kv_cache_dtype)
    config, plan = complete_config(asked, size, look_at_memory().free)
    total = plan.total(config.max_total_sequence_length or 0)
    print(f"  {plan.describe()}; {total / 2**20:.1f} MB for {config.max_total_sequence_length}")
    return open_runner(path, asked.kernels, 2, config), total


def compiled(path: Path, asked: EngineConfig) -> None:
    """Puts the library into the cache, in another process, whose memory does not count here."""
    process = multiprocessing.get_context("spawn").Process(target=_compile, args=(path, asked))
    process.start()
    process.join()


def _compile(path: Path, asked: EngineConfig) -> None:
    opened(path, asked)


def memory_bytes(what: str) -> int:
    """Memory of this process, on Linux: VmRSS is what it has, VmHWM the most that it has had."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (one for one in text.splitlines() if one.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_kv_cache_option(parser)
    parser.add_argument("--kernels", help="the machine's best if not given")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 16384, CONTEXT - 16])
    parser.add_argument("--depths", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    arguments = parser.parse_args()
    asked = EngineConfig(
        mode="interactive",
        max_single_sequence_length=max(arguments.lengths) + 16,
        kv_cache_dtype=arguments.kv_cache_dtype,
        kernels=arguments.kernels,
    )
    print_configuration("needle in a long text", kv_cache_dtype=asked.kv_cache_dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = write_retrieval_model(Path(folder) / "retrieval.gguf")
        compiled(path, asked)
        before = memory_bytes("VmRSS")
        runner, planned = opened(path, asked)
        wrong = 0
        for length in arguments.lengths:
            for depth in arguments.depths:
                start, given = time.process_time(), prompt(length, depth)
                answer = greedy(runner, given, len(expected()))
                good = answer == expected()
                wrong += not good
                words = "found" if good else f"not found: {bytes(min(i, 255) for i in answer)!r}"
                seconds = time.process_time() - start
                print(
                    f"{length:7} tokens, depth {depth}: {words}, {seconds:.1f} s of the processor"
                )
        taken = memory_bytes("VmHWM") - before
        print(f"memory: {taken / 2**20:.1f} MB more than before, {planned / 2**20:.1f} planned")
    if wrong or taken > planned:
        raise SystemExit(f"{wrong} wrong answers; {taken} bytes of {planned}")


if __name__ == "__main__":
    main()
