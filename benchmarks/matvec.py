"""Compares a packed matrix-vector product with the memory's read bandwidth.

    python benchmarks/matvec.py

Decode reads every weight once a token, so the bandwidth is its limit. For each shape, the script
reads so many copies of the matrix that no cache holds them, in the same kind of memory as a model's
weights. The bandwidth is measured in turns, by a plain sum over as many bytes on as many threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from common import Spread, print_configuration
from machine import LANES, PIECES, built, summing, written

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.quantized_rows import quantized_width

SHAPES = {
    "default model": [(960, 576), (576, 576), (3072, 576), (576, 1536)],
    "1B": [(3072, 2048), (16384, 2048), (2048, 8192)],
}


def reader(isa: Isa, megabytes: int) -> Callable[[], float]:
    """A function that measures GB/s of a plain sum."""
    size = megabytes * 2**20 // 4
    run = built(summing(size), isa)
    x = tvm_ffi.from_dlpack(written(size * 4).view(np.float32))
    y = tvm.runtime.tensor(np.zeros((PIECES, LANES), np.float32))

    def measure() -> float:
        start = time.perf_counter()
        run(x, y)
        return size * 4 / (time.perf_counter() - start) / 1e9

    return measure


def beside(run: Callable[[], float], read: Callable[[], float], rounds: int) -> str:
    """A line with GB/s of a kernel and of a plain read, in turns. The first turn is not counted."""
    pairs = [(run(), read()) for _ in range(rounds + 1)][1:]
    ours, plain = (Spread.of(side) for side in zip(*pairs, strict=True))
    return f"{ours}, {ours.median / plain.median:.0%} of a plain read's {plain}"


def product(isa: Isa, fmt: WeightFormat, n: int, k: int, megabytes: int) -> Callable[[], float]:
    """A function that measures GB/s of weights in one pass over `megabytes` of copies."""
    run = built(matmul(n, k, fmt, isa, accumulate=False), isa)
    shape, dtype = tensor_shape(fmt, n, k)
    size = int(np.prod(shape)) * 4
    copies = max(2, megabytes * 2**20 // size)
    every = written(copies * size).view(dtype).reshape(copies, *shape)
    weights = [tvm_ffi.from_dlpack(every[i]) for i in range(copies)]
    x = np.zeros((1, k // fmt.group, quantized_width(fmt.group)), np.int32)
    given = tvm.runtime.tensor(x if isa.integer else np.zeros((1, k), np.float32))
    y = tvm.runtime.tensor(np.zeros((1, n), np.float32))

    def measure() -> float:
        start = time.perf_counter()
        for matrix in weights:
            run(given, matrix, y)
        return copies * size / (time.perf_counter() - start) / 1e9

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", help="vnni, avx2 or portable; the machine's best if not given")
    parser.add_argument("--kinds", nargs="+", default=["Q4_0", "Q4_1", "Q8_0"])
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=256, help="read in one pass")
    arguments = parser.parse_args()
    isa = choose(arguments.kernels).isa
    threads = configure_threads()
    title = f"kernels {isa.name}, {threads} threads"
    print_configuration("matrix-vector products, GB/s of weights", kernels=title)
    read = reader(isa, arguments.megabytes)
    for model in arguments.models:
        shapes = SHAPES[model]
        for kind in arguments.kinds:
            fmt = format_of_kind(kind, half=isa.half)
            for n, k in shapes:
                if k % (fmt.group * fmt.span):
                    print(f"{model} {kind} {n}x{k}: {k} columns are no whole number of blocks")
                    continue
                run = product(isa, fmt, n, k, arguments.megabytes)
                print(f"{model} {kind} {n}x{k}: {beside(run, read, arguments.rounds)}")


if __name__ == "__main__":
    main()
