"""Measures how long quantising takes, and how near the values stay.

    python benchmarks/conversion.py [--rows N]

For each quantization that `convert_weight` makes, and a random matrix of N rows of 2,048 values, it
prints the processor time and the wall time of a weight, the bits of a weight, and the root mean
square of the errors, relative to that of the weights. Conversions read and write too; that is not
measured. (The bits of 3-bit schemes are those in memory, where they are float32.)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import print_configuration

from mlc_llm.model_files.quantized import target_of
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.names import NAMES

COLUMNS = 2048


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4096)
    rows = parser.parse_args().rows
    print_configuration("quantising", rows=rows, columns=COLUMNS)
    weight = np.random.default_rng(0).standard_normal((rows, COLUMNS)).astype(np.float32)
    print(f"{'name':10s} {'ns of a core':>12s} {'ns':>6s} {'bits':>6s} {'error':>8s}")
    for name in NAMES:
        target = target_of(name)
        target.quantize(weight[:64])
        wall, processor = time.perf_counter(), time.process_time()
        data = target.quantize(weight)
        took = [time.process_time() - processor, time.perf_counter() - wall]
        spent, waited = (1e9 * seconds / weight.size for seconds in took)
        error = np.sqrt(np.mean((dequantize(target.kind, data, weight.shape) - weight) ** 2))
        bits = 8 * data.size / weight.size
        print(f"{name:10s} {spent:12.1f} {waited:6.1f} {bits:6.2f} {error:8.4f}", flush=True)


if __name__ == "__main__":
    main()
