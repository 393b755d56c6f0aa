"""Compares attention of one decoding sequence with the memory's read bandwidth.

    python benchmarks/attention.py

A step reads every key and value of its sequence once, so the bandwidth is its limit. For each
context, the pages of so many layers are read that no cache holds them; they are in the same kind of
memory as a model's pages. The bandwidth is measured in turns, by a plain sum over as many bytes.

Two more lines say what keeps attention from that limit: a sum over the same pages in the order in
which attention reads them (the keys of a KV split, then its values, one KV head after the other),
and attention of one layer whose keys and values are in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi
from common import Spread, print_configuration
from machine import LANES, built, written
from matvec import beside, reader
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.attention import attention
from mlc_llm.kernels.cpu.attention_products import AHEAD
from mlc_llm.kernels.cpu.attention_shape import KV_SPLIT, Shape
from mlc_llm.kernels.cpu.prefetch import prefetch
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at
from mlc_llm.library.page_format import KV_CACHE_DTYPES, block_elements, element_bytes

SHAPES = {"default model": (9, 3, 64), "1B": (32, 8, 64)}
"""(heads, kv heads, head size)."""
CACHED = 200
"""Runs of a layer in the cache."""
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


def reading(pages: int, kv_heads: int, words: int) -> tvm.tirx.PrimFunc:
    """Adds up the pages of a layer in the order of attention, and asks for lines AHEAD blocks later
    as attention does. words: of the keys, or the values, of a page of one KV head."""
    splits = -(-pages // KV_SPLIT)
    tasks = kv_heads * splits

    @T.prim_func(private=True, s_tir=True)
    def total(
        P: T.Buffer((pages, kv_heads, 2, words), "float32"),
        y: T.Buffer((tasks, 4, LANES), "float32"),
    ):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for task in T.parallel(tasks):
                sums = T.alloc_buffer((4, LANES), "float32")
                for u in T.unroll(4):
                    sums[u, lanes_at(0, LANES)] = fsplat(0.0, LANES)
                first: T.let[T.int32] = task % splits * KV_SPLIT
                count: T.let[T.int32] = T.min(KV_SPLIT, pages - first)
                for i in T.serial(2 * count):
                    later: T.let[T.int32] = i + AHEAD
                    away: T.let[T.int32] = T.Select(later < count, later, later - count)
                    kind: T.let[T.int32] = T.Select(later // count == 1, 1, 0)
                    for line in T.serial(words // LANES // 4):
                        for u in T.unroll(4):
                            at = T.meta_var((line * 4 + u) * LANES)
                            page = T.meta_var(T.min(first + away, pages - 1))
                            T.evaluate(prefetch(P, page, task // splits, kind, at, cache=2))
                            sums[u, lanes_at(0, LANES)] = (
                                sums[u, lanes_at(0, LANES)]
                                + P[
                                    first + i % count, task // splits, i // count,
                                    lanes_at(at, LANES),
                                ]
                            )  # fmt: skip
                for u in T.unroll(4):
                    y[task, u, lanes_at(0, LANES)] = sums[u, lanes_at(0, LANES)]

    return total


class Layers:
    """Pages of layers of one sequence, of `size` bytes or more."""

    def __init__(self, isa: Isa, shape: tuple[int, int, int], context: int, size: int) -> None:
        _, kv_heads, dim = shape
        pages, self._isa, self._shape = -(-context // PAGE), isa, shape
        block = block_elements(isa.kv_dtype, PAGE, dim)
        layer = element_bytes(isa.kv_dtype) * pages * kv_heads * 2 * block
        self._layers, self._pages = -(-size // layer), pages
        every = filled(isa, (self._layers, pages, kv_heads, 2, block))
        self._stores = [tvm_ffi.from_dlpack(every[i]) for i in range(self._layers)]
        self._words = block * element_bytes(isa.kv_dtype) // 4
        plain = every.view(np.float32)
        self._plain = [tvm_ffi.from_dlpack(plain[i]) for i in range(self._layers)]
        self._bytes, self._context = layer * context / (pages * PAGE), context

    def decoder(self) -> Callable[[], float]:
        """A function that measures GB/s of keys and values, of attention in all layers."""
        (heads, kv_heads, dim), rng = self._shape, np.random.default_rng(3)
        shape = Shape(heads, kv_heads, dim, self._isa, self._isa.kv_dtype)
        run = built(attention(shape), self._isa)
        q = tvm.runtime.tensor(rng.standard_normal((1, heads * dim)).astype(np.float32))
        numbers = ([self._context - 1], [[0, 1, 0]], range(self._pages), SEEN)
        given = [tvm.runtime.tensor(np.array(each, np.int32)) for each in numbers]
        out = tvm.runtime.tensor(np.zeros((1, heads * dim), np.float32))
        return self._measure([(q, store, *given, out) for store in self._stores], run)

    def reader(self) -> Callable[[], float]:
        """The same of a sum in the order of attention."""
        kv_heads = self._shape[1]
        run = built(reading(self._pages, kv_heads, self._words), self._isa)
        tasks = kv_heads * -(-self._pages // KV_SPLIT)
        out = tvm.runtime.tensor(np.zeros((tasks, 4, LANES), np.float32))
        return self._measure([(store, out) for store in self._plain], run)

    def _measure(
        self, calls: list[tuple[object, ...]], run: Callable[..., object]
    ) -> Callable[[], float]:
        def measure() -> float:
            start = time.perf_counter()
            for given in calls:
                run(*given)
            return self._bytes * len(calls) / (time.perf_counter() - start) / 1e9

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
            layers, title = Layers(isa, shape, context, size), f"{model}, context {context}"
            print(f"{title}: {beside(layers.decoder(), read, arguments.rounds)}")
            print(f"  read in its order: {beside(layers.reader(), read, arguments.rounds)}")
            cached = Layers(isa, shape, context, 1).decoder()
            print(f"  one layer, cached: {Spread.of([cached() for _ in range(CACHED)])} GB/s")


if __name__ == "__main__":
    main()
