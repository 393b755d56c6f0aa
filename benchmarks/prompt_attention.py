"""Compares exact attention of a prompt with plain products of float32.

    python benchmarks/prompt_attention.py [--model FILE] [--tokens N ...]

Attention is counted by the pairs of tokens that see each other: a multiplication and an addition
for each element of a head, once for scores and once for values. The plain products are NumPy's,
which OpenBLAS computes, of square matrices on as many threads. Both are measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from attention import SEEN, filled
from common import Spread, model_path, print_configuration
from machine import built

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import choose
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.attention import attention, query_block_tokens
from mlc_llm.kernels.cpu.attention_shape import Shape
from mlc_llm.library.page_format import block_elements
from mlc_llm.loader.gguf import GGUFFile

SIZE = 1024
"""Rows and columns of the plain products."""
LEAST = 0.2
"""Seconds of a measurement."""
PAUSE = 0.3
"""Seconds before it: a thread of OpenBLAS looks for more work for a tenth of a second, and takes a
core from whoever computes then."""


def shape_of(model: Path) -> tuple[int, int, int]:
    """Heads, KV heads, elements of a head."""
    file = GGUFFile.open(model)
    name = file.metadata["general.architecture"]
    heads = file.get_int(f"{name}.attention.head_count")
    width = file.get_int(f"{name}.embedding_length") // heads
    return heads, file.get_int(f"{name}.attention.head_count_kv"), width


def prompt(isa: Isa, shape: tuple[int, int, int], tokens: int) -> Callable[[], float]:
    """A function that measures GMAC/s of one layer's attention of a prompt."""
    heads, kv_heads, dim = shape
    run = built(attention(Shape(heads, kv_heads, dim, isa, isa.kv_dtype)), isa)
    pages, step = -(-tokens // PAGE), query_block_tokens(heads, kv_heads, isa)
    store = filled(isa, (pages, kv_heads, 2, block_elements(isa.kv_dtype, PAGE, dim)))
    blocks = [[at, min(step, tokens - at), 0] for at in range(0, tokens, step)]
    numbers = (range(tokens), blocks, range(pages), SEEN)
    given = [tvm.runtime.tensor(np.array(each, np.int32)) for each in numbers]
    q = np.random.default_rng(3).standard_normal((tokens, heads * dim)).astype(np.float32)
    queries, out = tvm.runtime.tensor(q), tvm.runtime.tensor(np.zeros_like(q))
    pairs = tokens * (tokens + 1) // 2
    stored = tvm_ffi.from_dlpack(store)
    return _rate(lambda: run(queries, stored, *given, out), 2 * pairs * heads * dim)


def plain() -> Callable[[], float]:
    """A function that measures GMAC/s of NumPy's products."""
    a, b = np.random.default_rng(3).standard_normal((2, SIZE, SIZE), np.float32)
    out = np.empty_like(a)
    return _rate(lambda: np.matmul(a, b, out), SIZE**3)


def _rate(run: Callable[[], object], work: int) -> Callable[[], float]:
    """A function that runs for `LEAST` seconds, after a pause. Returns 10^9 of `work` a second."""

    def measure() -> float:
        time.sleep(PAUSE)
        start, times = time.perf_counter(), 0
        while (taken := time.perf_counter() - start) < LEAST:
            run()
            times += 1
        return times * work / taken / 1e9

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    isa, threads = choose().isa, configure_threads()
    shape, against = shape_of(model_path(arguments.model)), plain()
    title = f"kernels {isa.name}, {threads} threads, heads {shape}"
    print_configuration("attention of prompts, GMAC/s", kernels=title)
    for tokens in arguments.tokens:
        run = prompt(isa, shape, tokens)
        pairs = [(run(), against()) for _ in range(arguments.rounds + 1)][1:]
        ours, other = (Spread.of(side) for side in zip(*pairs, strict=True))
        share = ours.median / other.median
        print(f"{tokens} tokens: {ours}, {share:.0%} of plain products' {other}", flush=True)


if __name__ == "__main__":
    main()
