"""Compares attention of one decoding sequence with the memory's read bandwidth.

    python benchmarks/attention.py

A step reads every key and value of its sequence once, so the bandwidth is its limit. For each
context, the pages of so many layers are read that no cache holds them; they are in the same kind of
memory as a model's pages. The bandwidth is measured in turns, by a plain sum over as many bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from common import print_configuration
from machine import built, written
from matvec import beside, reader

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.attention import attention

SHAPES = {"default model": (9, 3, 64), "1B": (32, 8, 64)}
"""(heads, kv heads, head size)."""
SEEN = (2**31 - 1, 0)
"""Every token sees all tokens before it."""


def decoder(isa: Isa, shape: tuple[int, int, int], context: int, size: int) -> Callable[[], float]:
    """A function that measures GB/s of keys and values in one pass over `size` bytes or more."""
    heads, kv_heads, dim = shape
    run = built(attention(heads, kv_heads, dim, isa, isa.kv_dtype), isa)
    pages = -(-context // PAGE)
    layer = np.dtype(isa.kv_dtype).itemsize * pages * kv_heads * 2 * PAGE * dim
    layers = -(-size // layer)
    every = written(layers * layer).view(isa.kv_dtype)
    every = every.reshape(layers, pages, kv_heads, 2, PAGE * dim)
    rng = np.random.default_rng(3)
    every[...] = rng.standard_normal(every.shape[2:]).astype(isa.kv_dtype)
    stores = [tvm_ffi.from_dlpack(every[i]) for i in range(layers)]
    q = tvm.runtime.tensor(rng.standard_normal((1, heads * dim)).astype(np.float32))
    numbers = ([context - 1], [[0, 1, 0]], range(pages), SEEN)
    given = [tvm.runtime.tensor(np.array(each, np.int32)) for each in numbers]
    out = tvm.runtime.tensor(np.zeros((1, heads * dim), np.float32))

    def measure() -> float:
        start = time.perf_counter()
        for store in stores:
            run(q, store, *given, out)
        taken = time.perf_counter() - start
        return layers * layer * context / (pages * PAGE) / taken / 1e9

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", help="vnni, avx2 or portable; the machine's best if not given")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 2048, 8160])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=256, help="read in one pass")
    arguments = parser.parse_args()
    isa = choose(arguments.kernels).isa
    threads = configure_threads()
    title = f"kernels {isa.name}, {threads} threads"
    print_configuration("attention of one token, GB/s of keys and values", kernels=title)
    size = arguments.megabytes * 2**20
    read = reader(isa, arguments.megabytes)
    for model, shape in SHAPES.items():
        for context in arguments.contexts:
            run = decoder(isa, shape, context, size)
            print(f"{model}, context {context}: {beside(run, read, arguments.rounds)}")


if __name__ == "__main__":
    main()
