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
from dataclasses import replace

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
from mlc_llm.library.page_format import KV_CACHE_DTYPES, block_elements, element_bytes

SHAPES = {"default model": (9, 3, 64), "1B": (32, 8, 64)}
"""(heads, kv heads, head size)."""
SEEN = (2**31 - 1, 0)
"""Every token sees all tokens before it."""


def filled(isa: Isa, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for pages of that shape, whose numbers are small."""
    every = written(int(np.prod(shape)) * element_bytes(isa.kv_dtype))
    every = every.view(isa.kv_dtype).reshape(shape)
    rng = np.random.default_rng(3)
    if isa.kv_dtype == "int8":  # as scales, two such bytes are numbers near 1
        every[...] = rng.integers(60, 63, shape[2:])
    else:
        every[...] = rng.standard_normal(shape[2:]).astype(isa.kv_dtype)
    return every


def decoder(isa: Isa, shape: tuple[int, int, int], context: int, size: int) -> Callable[[], float]:
    """A function that measures GB/s of keys and values in one pass over `size` bytes or more."""
    heads, kv_heads, dim = shape
    run = built(attention(heads, kv_heads, dim, isa, isa.kv_dtype), isa)
    pages = -(-context // PAGE)
    block = block_elements(isa.kv_dtype, PAGE, dim)
    layer = element_bytes(isa.kv_dtype) * pages * kv_heads * 2 * block
    layers = -(-size // layer)
    every, rng = filled(isa, (layers, pages, kv_heads, 2, block)), np.random.default_rng(3)
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
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 2048, 8160])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=256, help="read in one pass")
    arguments = parser.parse_args()
    isa = choose(arguments.kernels).isa
    isa = replace(isa, byte_pages=arguments.kv_cache_dtype == "int8")
    threads = configure_threads()
    title = f"kernels {isa.name}, pages {isa.kv_dtype}, {threads} threads"
    print_configuration("attention of one token, GB/s of keys and values", kernels=title)
    size = arguments.megabytes * 2**20
    read = reader(isa, arguments.megabytes)
    for model, shape in SHAPES.items():
        for context in arguments.contexts:
            run = decoder(isa, shape, context, size)
            print(f"{model}, context {context}: {beside(run, read, arguments.rounds)}")


if __name__ == "__main__":
    main()
