"""Products of prompts on an NVIDIA GPU of sm_90: does `wgmma` give the right numbers, and how fast?

    python benchmarks/gpu_products.py [--rows 2048] [--size 4096] [--kind F16]

It multiplies so many rows of random numbers with a square matrix, by the kernel of all precisions
(`kernels/cuda/matmul.py`, mma.sync) and by that of fast prompts (`matmul_hopper.py`, wgmma), with
two planes of float16 and with one. It prints the largest difference from float64, as a part of the
largest number, and TFLOP/s, where a product with two planes counts once. Times are medians of the
host's clock around work that is waited for. The exit code is 1 if numbers are wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gpu_first_run import FILES, arch_of, timed
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.cuda.calls import Input, call, float_tensor
from mlc_llm.backends.cuda.codegen import compile_module
from mlc_llm.backends.cuda.device import CudaDevice
from mlc_llm.backends.cuda.driver import usable_gpu
from mlc_llm.backends.cuda.formats import format_of_kind, tensor_shape
from mlc_llm.backends.cuda.layout import CudaLayout
from mlc_llm.backends.cuda.runtime import load_cuda
from mlc_llm.errors import MLCError
from mlc_llm.kernels.cuda.matmul import matmul
from mlc_llm.kernels.cuda.matmul_hopper import matmul_hopper

WORST = {"mma": 2e-6, "wgmma": 2e-6, "wgmma_one_plane": 1e-3}
"""Largest difference by kernel, as a part of the largest number."""
ARCHITECTURE = "sm_90a"


class Products(nn.Module):  # type: ignore[misc]
    """A product of float32 [rows, size] with a packed matrix, by each kernel."""

    def __init__(self, size: int, kind: str) -> None:
        self.size, self.fmt = size, format_of_kind(kind)

    def _product(self, kernel: Any, name: str, x: Tensor, w: Tensor) -> Tensor:
        planes = Input("plain", x).planes(self.size)
        return call(kernel, name, [planes, w], float_tensor(x.shape[0], self.size))

    def mma(self, x: Tensor, w: Tensor) -> Tensor:
        return self._product(matmul(self.size, self.size, self.fmt), "mma", x, w)

    def wgmma(self, x: Tensor, w: Tensor) -> Tensor:
        return self._product(matmul_hopper(self.size, self.size, self.fmt), "wgmma", x, w)

    def wgmma_one_plane(self, x: Tensor, w: Tensor) -> Tensor:
        kernel = matmul_hopper(self.size, self.size, self.fmt, planes=1)
        return self._product(kernel, "wgmma_one_plane", x, w)


def build(
    size: int, kind: str, folder: Path, compile_source: Callable[[str], bytes] | None = None
) -> None:
    """Compiles the library into a folder, which exists; as `compile_module`."""
    shape, dtype = tensor_shape(format_of_kind(kind), size, size)
    inputs: dict[str, Any] = {
        "x": nn.spec.Tensor(["rows", size], "float32"),
        "w": nn.spec.Tensor(list(shape), dtype),
        "$": {"param_mode": "none", "effect_mode": "none"},
    }
    module, _ = Products(size, kind).export_tvm(dict.fromkeys(WORST, inputs))
    compile_module(module, ARCHITECTURE, folder, compile_source)


def compare(folder: Path | str, rows: int, size: int, kind: str) -> int:
    """Prints all figures. The exit code."""
    gpu = usable_gpu()
    device, runtime = CudaDevice(), load_cuda()
    library = device.link(Path(folder), FILES, (ARCHITECTURE,))
    print(f"{gpu.name}, {arch_of(gpu)}: {rows} rows, {size} x {size}, {kind}")
    random = np.random.default_rng(0)
    x, matrix = (
        random.normal(size=shape).astype(np.float16).astype(np.float32)
        for shape in ((rows, size), (size, size))
    )
    given, packed = device.upload(x), device.upload(CudaLayout(kind).pack(matrix))
    some = slice(0, 64)
    exact = x[some].astype(np.float64) @ matrix.T
    failed = 0
    for name, worst in WORST.items():

        def multiply(product: Callable[..., Any] = library[name]) -> Any:
            return product(given, packed)

        found: npt.NDArray[np.float32] = device.read(multiply())[some].copy()
        error = float(np.abs(found - exact).max() / np.abs(exact).max())
        rate = 2 * rows * size**2 / timed(multiply, runtime) / 1e12
        failed |= not error <= worst
        words = "right" if error <= worst else "WRONG"
        print(f"{name}: error {error:.1e}, {words}, {rate:.1f} TFLOP/s")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--size", type=int, default=4096, help="a multiple of 128")
    parser.add_argument("--kind", default="F16", choices=("F16", "BF16"))
    args = parser.parse_args()
    try:
        usable_gpu()
        with tempfile.TemporaryDirectory() as folder:
            build(args.size, args.kind, Path(folder))
            return compare(Path(folder), args.rows, args.size, args.kind)
    except (MLCError, MemoryError) as error:
        print(f"gpu_products: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
