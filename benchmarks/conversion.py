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
import numpy.typing as npt
from common import print_configuration

from mlc_llm.backends.cpu.k_searches import compiled_searches
from mlc_llm.model_files.quantized import target_of
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.ggml_quantize import K_TYPES, quantize
from mlc_llm.quantization.names import AT_LOAD
from mlc_llm.quantization.scale_search import NUMPY

COLUMNS = 2048


def made(name: str, weight: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The bytes of a quantised matrix, as `convert_weight` makes them."""
    if name.upper() in K_TYPES:
        return quantize(name.upper(), weight, compiled_searches() or NUMPY)
    return target_of(name).quantize(weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4096)
    rows = parser.parse_args().rows
    print_configuration("quantising", rows=rows, columns=COLUMNS)
    weight = np.random.default_rng(0).standard_normal((rows, COLUMNS)).astype(np.float32)
    print(f"{'name':10s} {'ns of a core':>12s} {'ns':>6s} {'bits':>6s} {'error':>8s}")
    for name in AT_LOAD:
        target = target_of(name)
        made(name, weight[:64])
        wall, processor = time.perf_counter(), time.process_time()
        data = made(name, weight)
        took = [time.process_time() - processor, time.perf_counter() - wall]
        spent, waited = (1e9 * seconds / weight.size for seconds in took)
        error = np.sqrt(np.mean((dequantize(target.kind, data, weight.shape) - weight) ** 2))
        bits = 8 * data.size / weight.size
        print(f"{name:10s} {spent:12.1f} {waited:6.1f} {bits:6.2f} {error:8.4f}", flush=True)


if __name__ == "__main__":
    main()
