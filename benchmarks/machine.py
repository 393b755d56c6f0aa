"""How fast this machine reads memory: the context in which decode speeds stand.

    python benchmarks/machine.py

Decode reads every weight once a token, so bandwidth divided by the file's size bounds it.
NumPy takes the maximum of 512 MiB of integers, far more than any cache holds; it releases the
GIL, so threads add up.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import Spread, model_path, print_configuration

SIZE = 512 << 20


def read_bandwidth(data: np.ndarray, threads: int) -> float:
    """GB/s of one pass, cut evenly among threads that are already running."""
    parts = np.array_split(data, threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.max, parts))
        start = time.perf_counter()
        list(pool.map(np.max, parts))
        return data.nbytes / (time.perf_counter() - start) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    size = model_path(arguments.model).stat().st_size
    print_configuration("memory read bandwidth, GB/s", model=f"{size / 1e6:.1f} MB")
    data = np.ones(SIZE // 4, dtype=np.int32)
    for threads in (1, 2):
        found = Spread.of([read_bandwidth(data, threads) for _ in range(arguments.repeat)])
        bound = found.high * 1e9 / size
        print(f"{threads} thread(s): {found}; at best {bound:.0f} readings of the file a second")


if __name__ == "__main__":
    main()
