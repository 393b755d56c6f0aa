"""How fast a model is on an NVIDIA GPU, beside the limits of the GPU and, if asked for, llama.cpp.

    python benchmarks/gpu.py [--model FILE.gguf] [--streams 1 32 256] [--llama-bench PATH]
    python benchmarks/gpu.py --carried FOLDER --made 8b-q4     # without a compiler (gpu_carry.py)

Each round measures, in turns: how fast a kernel reads and writes the GPU's memory (as in
`gpu_first_run.py`), steps of decoding for each number of streams behind `--context` tokens, a
prompt of `--prompt` tokens, and the same with llama.cpp's `llama-bench` (a build for CUDA) on the
same file. It prints medians with the least and the greatest value. A step of decoding reads all
weights and all keys and values once: the share of that in the measured bandwidth is printed too.

`--before` measures the accuracy first: the logits of a text beside those of the reference kernels
on the CPU. The exit code is 1 if they differ by more than 1 % of the largest one.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from common import Spread, model_path
from gpu_first_run import COLUMNS, FILES, GIB, arch_of, timed
from gpu_made import make_weights
from ours import GREEDY

from mlc_llm.backends.cuda.device import CudaDevice
from mlc_llm.backends.cuda.driver import shown, usable_gpu
from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.backends.cuda.runtime import load_cuda
from mlc_llm.errors import MLCError
from mlc_llm.runtime.batch import KNOWN, Batch, BatchRow
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.runner import create_runner

CHUNK = 2048
STEPS = 32
"""Steps of decoding in a round."""
WORST = 0.01


@dataclass
class Found:
    """Figures of all rounds, by what was measured."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def lines(self) -> list[str]:
        return [f"{name}: {Spread.of(values)}" for name, values in self.values.items()]


def main() -> int:
    args = arguments()
    try:
        gpu = usable_gpu()
        model = args.made or model_path(args.model)
        print(f"GPU: {gpu.name}, {shown(gpu.capability)}, {gpu.free_memory >> 20} MiB free")
        print(f"model: {model}, context {args.context}, rounds {args.rounds}", flush=True)
        if args.before and not is_accurate(model):
            return 1
        found = Found()
        with tempfile.TemporaryDirectory() as folder:
            if args.made:
                carried = Path(args.carried)
                runner = made_runner(carried / "models" / model, Path(folder), args)
                read = Bandwidth(carried / "first", arch_of(gpu), args.size)
            else:
                runner = opened(model, max(args.streams), args.context, "cuda")
                read = built_bandwidth(Path(folder), arch_of(gpu), args.size)
            for _ in range(args.rounds):
                speed = read.measured()
                found.add("copy inside the GPU's memory, GB/s", speed / 1e9)
                with computing_here():  # as threaded engines and the command line
                    one_round(runner, args, speed, found)
                if args.llama_bench:
                    peer_round(args.llama_bench, model, args, found)
    except (MLCError, MemoryError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 1
    print(*found.lines(), sep="\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--carried", metavar="FOLDER", help="what gpu_carry.py has made")
    parser.add_argument("--made", metavar="NAME", help="one of its models, with random weights")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--context", type=int, default=512, help="tokens before decoding")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of decoding in a round")
    parser.add_argument("--size", type=int, default=GIB, help="bytes of the copied tensor")
    parser.add_argument("--llama-bench", metavar="PATH", help="of llama.cpp, built for CUDA")
    parser.add_argument("--before", action="store_true", help="compare logits with the CPU's first")
    args = parser.parse_args()
    if (args.made is None) != (args.carried is None) or (args.made and args.before):
        parser.error("--made needs --carried, and --carried --made; --before is not for them")
    return args


def made_runner(library: Path, folder: Path, args: argparse.Namespace) -> ModelRunner:
    """A runner of a library that was compiled elsewhere, with weights that are made here."""
    start = time.perf_counter()
    make_weights(library, folder)
    print(f"weights made in {time.perf_counter() - start:.0f} s", flush=True)
    length = max(args.context + STEPS * 64, args.prompt)
    pages = -(-length // PAGE) * (max(args.streams) + 1)
    return ModelRunner(
        library, folder, num_pages=pages, max_num_sequence=max(args.streams) + 1,
        max_batch_tokens=CHUNK, context_window=length,
    )  # fmt: skip


def opened(model: Path, streams: int, context: int, kernels: str) -> ModelRunner:
    """A runner with room for so many streams."""
    length = context + STEPS * 64
    config = EngineConfig(
        kernels=kernels,
        max_num_sequence=streams + 1,
        max_total_sequence_length=(streams + 1) * length,
        max_single_sequence_length=length,
        prefill_chunk_size=CHUNK,
    )
    runner = create_runner(open_model(str(model)), config)
    assert isinstance(runner, ModelRunner), "a model that writes text"
    return runner


def is_accurate(model: Path) -> bool:
    """Whether logits are those of the CPU. Prints the largest difference."""
    ids = np.random.default_rng(0).integers(0, 200, 64).tolist()
    found, exact = (opened(model, 1, 64, one).logits(ids) for one in ("cuda", "reference"))
    wide = exact.astype(np.float64)
    error = float(np.abs(found.astype(np.float64) - wide).max() / np.abs(wide).max())
    print(f"largest difference of a logit: {error:.1e} of the largest one")
    return error <= WORST


class Bandwidth:
    """How fast a kernel reads one tensor and writes another one."""

    def __init__(self, folder: Path, arch: str, size: int) -> None:
        """folder: with the kernels of `gpu_kernels.py`."""
        self._device, self._runtime, self._size = CudaDevice(), load_cuda(), size
        self._library = self._device.link(folder, FILES, (arch,))

    def measured(self) -> float:
        """Bytes a second, read and written."""
        x = self._device.zeros((self._size // 4 // COLUMNS, COLUMNS), "float32")
        return 2 * self._size / timed(lambda: self._library["once"](x), self._runtime)


def built_bandwidth(folder: Path, arch: str, size: int) -> Bandwidth:
    """With kernels that are compiled here."""
    from gpu_kernels import build

    build(arch, folder)
    return Bandwidth(folder, arch, size)


def one_round(runner: ModelRunner, args: argparse.Namespace, speed: float, found: Found) -> None:
    """Our own figures: a prompt, and decoding with each number of streams. speed: of the memory,
    bytes a second."""
    ids = np.random.default_rng(1).integers(0, 200, args.prompt).tolist()
    seconds = [prefilled(runner, 0, ids) for _ in range(2)][-1]
    found.add(f"prompt of {args.prompt}, tok/s", args.prompt / seconds)
    for streams in args.streams:
        for seq_id in range(streams):
            prefilled(runner, seq_id, ids[: args.context], keep=True)
        decoded(runner, streams, 3)  # captures the step
        seconds_of_step = decoded(runner, streams, args.steps)
        for seq_id in range(streams):
            runner.remove_sequence(seq_id)
        found.add(f"{streams} streams, tok/s", streams / seconds_of_step)
        share = bytes_of_step(runner, streams, args.context) / seconds_of_step / speed
        found.add(f"{streams} streams, % of the bandwidth", 100 * share)


def bytes_of_step(runner: ModelRunner, streams: int, context: int) -> int:
    """What a step of decoding has to read: all weights, and the keys and values of its streams."""
    one = runner.metadata
    weights = sum(math.prod(p.shape) * np.dtype(p.dtype).itemsize for p in one.params)
    width = sum(2 * len(g.layers) * g.kv_heads * g.head_dim for g in one.kv.groups)
    return weights + streams * context * width * np.dtype(one.kv.dtype).itemsize


def prefilled(runner: ModelRunner, seq_id: int, ids: Sequence[int], *, keep: bool = False) -> float:
    """Seconds until the token behind a prompt is there."""
    runner.add_sequence(seq_id)
    start = time.perf_counter()
    for first in range(0, len(ids), CHUNK):
        part = ids[first : first + CHUNK]
        last = (GREEDY,) if first + CHUNK >= len(ids) else ()
        runner.run(Batch([BatchRow(seq_id, part, last, len(part))]))
    seconds = time.perf_counter() - start
    if not keep:
        runner.remove_sequence(seq_id)
    return seconds


def decoded(runner: ModelRunner, streams: int, steps: int) -> float:
    """Seconds of a step in which each stream gets a token, each step started while the one before
    computes, if the runner can do that."""
    before, overlaps, start = None, runner.limits.overlaps, time.perf_counter()
    for _ in range(steps):
        rows = [
            BatchRow(i, (17,), (GREEDY,), chosen_by=KNOWN if before is None else i)
            for i in range(streams)
        ]
        started = runner.submit(Batch(rows), before)
        if before is not None or not overlaps:
            runner.collect(before or started)
        before = started if overlaps else None
    if before is not None:
        runner.collect(before)
    return (time.perf_counter() - start) / steps


def peer_round(path: str, model: Path, args: argparse.Namespace, found: Found) -> None:
    """llama.cpp's figures for one stream and a prompt, on the same file."""
    command = [path, "-m", str(model), "-ngl", "99", "-o", "json", "-r", "1"]
    command += ["-p", str(args.prompt), "-n", "64", "-d", str(args.context)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for row in json.loads(done.stdout):
        name = "prompt" if row["n_gen"] == 0 else "1 stream"
        found.add(f"llama.cpp, {name}, tok/s", row["avg_ts"])


if __name__ == "__main__":
    sys.exit(main())
