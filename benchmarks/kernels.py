"""Compares products of many rows with the processor's limit, on one thread.

    python benchmarks/kernels.py [--kernels vnni] [--rows N ...] [--planes 1 2] [--kinds KIND ...]

Each rate is a share of `vpdpbusd` on registers, or for avx2 of `vpmaddwd` (`machine.py`); a product
of two planes of bytes counts twice. The limit and the products are measured in turns. The clock is
that of the thread: it stands still while other programs have the core, but not while the core's
other thread slows it down.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace

os.environ["MLC_NUM_THREADS"] = "1"

import numpy as np
import tvm
import tvm_ffi
from common import Spread, print_configuration
from machine import Products, built, written
from matvec import SHAPES

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.quantized_rows import DESCRIPTION, quantized_width

KINDS = {"default model": "Q4_1", "1B": "Q4_0"}
"""The types of most matrices of the models in `compare.py`."""


def clocked(run: Callable[..., object], *given: object) -> float:
    """CPU seconds of a call on this thread."""
    start = time.thread_time()
    run(*given)
    return time.thread_time() - start


def limit(isa: Isa) -> Callable[[], float]:
    """A function that measures products a second, 10^9, on registers."""
    run = Products(isa, 1)
    return lambda: run.count / clocked(run) / 1e9


def product(isa: Isa, fmt: WeightFormat, n: int, k: int, rows: int) -> Callable[[], float]:
    """A function that measures products a second, 10^9, of all planes together."""
    run = built(matmul(n, k, fmt, isa, accumulate=False), isa)
    shape, dtype = tensor_shape(fmt, n, k)
    weights = tvm_ffi.from_dlpack(_weights(fmt, shape, dtype))
    given = tvm.runtime.tensor(_activations(fmt.group, rows, k))
    y = tvm.runtime.tensor(np.zeros((rows, n), np.float32))
    times = max(1, 10**9 // (rows * n * k * isa.planes))

    def measure() -> float:
        taken = clocked(lambda: [run(given, weights, y) for _ in range(times)])
        return times * rows * n * k * isa.planes / taken / 1e9

    return measure


def _weights(fmt: WeightFormat, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random weights whose scales are 1/16, in the same kind of memory as a model's."""
    packed = written(int(np.prod(shape)) * 4).view(dtype).reshape(shape)
    packed[...] = np.random.default_rng(5).integers(0, 2**31, shape, np.int32)
    groups = packed[..., fmt.unit_words :].reshape(len(packed), -1, fmt.group_stride)
    whole = fmt.scale_dtype == "int8"
    groups[..., fmt.scale_start(0) :] = 0x01010101 if whole else 0x2C002C00
    packed[..., : fmt.unit_words] = 0x2C002C00
    packed[..., fmt.unit_words :] = groups.reshape(*packed.shape[:2], -1)
    return packed


def _activations(group: int, rows: int, k: int) -> np.ndarray:
    """Random quantised rows whose scales are 1/128."""
    shape = (rows, k // group, quantized_width(group))
    x = np.random.default_rng(5).integers(-(2**31), 2**31, shape, np.int32)
    x[..., group // 2 :] = 0
    x[..., group // 2 :: DESCRIPTION] = 0x3C000000
    return x


def shares(run: Callable[[], float], most: Callable[[], float], rounds: int) -> Spread:
    """The shares of the limit, in turns. The first turn is not counted."""
    return Spread.of([run() / most() for _ in range(rounds + 1)][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", default="vnni", choices=["vnni", "avx-vnni", "avx2"])
    parser.add_argument("--rows", nargs="+", type=int, default=[32, 512])
    parser.add_argument("--planes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    isa = choose(arguments.kernels).isa
    plane_counts = [planes for planes in arguments.planes if planes <= isa.sums]
    configure_threads()
    most = limit(isa)
    rate = Spread.of([most() for _ in range(arguments.rounds)])
    print_configuration("products of many rows", kernels=isa.name, limit=f"{rate} GMAC/s")
    for model, shapes in SHAPES.items():
        kinds = arguments.kinds or [KINDS[model]]
        for kind, planes, rows in itertools.product(kinds, plane_counts, arguments.rows):
            fmt = format_of_kind(kind, half=isa.half)
            chosen = replace(isa, one_plane=planes < isa.sums)
            fitting = [(n, k) for n, k in shapes if k % (fmt.group * fmt.span) == 0]
            if not fitting:
                print(f"{model} {kind}: no matrix has whole blocks in a row")
                continue
            seconds = 0.0
            for n, k in fitting:
                share = shares(product(chosen, fmt, n, k, rows), most, arguments.rounds)
                seconds += n * k / share.median
                spread = f"{share.median:.1%} ({share.low:.1%} to {share.high:.1%})"
                print(f"{model} {kind} {n}x{k}, planes {planes}, rows {rows}: {spread}", flush=True)
            whole = sum(n * k for n, k in fitting) / seconds
            print(f"{model} {kind} together, planes {planes}, rows {rows}: {whole:.1%}", flush=True)


if __name__ == "__main__":
    main()
