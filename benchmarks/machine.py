"""What this machine could give: the context in which speeds stand.

    python benchmarks/machine.py

Decode reads every weight once a token, so the read bandwidth divided by the weights' size bounds
it; prompts are bound by how many products of 8-bit numbers the processor can add up. Both are
measured by kernels that do nothing else, compiled by TVM and run by the very threads that run a
model: a sum over 512 MiB, far more than any cache holds, in huge pages where the system has
them; and `vpdpbusd` on registers (a product and an addition are two operations).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from common import Spread, model_path, print_configuration
from tvm.script import tirx as T
from tvm.target import codegen

from mlc_llm.compiler.target import choose, target_for
from mlc_llm.kernels.isa import VNNI, Isa
from mlc_llm.kernels.vectors import SCHEDULED, fsplat, lanes_at
from mlc_llm.runtime.memory import zeroed
from mlc_llm.runtime.threads import configure_threads

SIZE = 512 << 20
LANES, PIECES = 16, 64
CHAINS = 12
"""Sums that do not wait for each other: enough to keep every unit busy."""
TURNS = 1_000_000


def summing(size: int) -> tvm.tirx.PrimFunc:
    """Adds up float32 [size] in PIECES parallel pieces: reads and does next to nothing else."""
    piece = size // PIECES

    @T.prim_func(private=True, s_tir=True)
    def total(x: T.Buffer((size,), "float32"), y: T.Buffer((PIECES, LANES), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for p in T.parallel(PIECES):
                acc = T.alloc_buffer((4, LANES), "float32")
                for u in T.unroll(4):
                    acc[u, lanes_at(0, LANES)] = fsplat(0.0, LANES)
                for i in T.serial(piece // LANES // 4):
                    for u in T.unroll(4):
                        acc[u, lanes_at(0, LANES)] = (
                            acc[u, lanes_at(0, LANES)]
                            + x[lanes_at(p * piece + (i * 4 + u) * LANES, LANES)]
                        )
                y[p, lanes_at(0, LANES)] = (
                    acc[0, lanes_at(0, LANES)]
                    + acc[1, lanes_at(0, LANES)]
                    + acc[2, lanes_at(0, LANES)]
                    + acc[3, lanes_at(0, LANES)]
                )

    return total


def multiplying(threads: int) -> tvm.tirx.PrimFunc:
    """CHAINS sums of TURNS products each, on every thread, with operands x [2, 16] in registers."""

    @T.prim_func(private=True, s_tir=True)
    def products(x: T.Buffer((2, LANES), "int32"), y: T.Buffer((threads, CHAINS, LANES), "int32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for p in T.parallel(threads):
                acc = T.alloc_buffer((CHAINS, LANES), "int32")
                for u in T.unroll(CHAINS):
                    acc[u, lanes_at(0, LANES)] = x[0, lanes_at(0, LANES)]
                for _ in T.serial(TURNS):
                    for u in T.unroll(CHAINS):
                        acc[u, lanes_at(0, LANES)] = _added(
                            acc[u, lanes_at(0, LANES)],
                            x[0, lanes_at(0, LANES)],
                            x[1, lanes_at(0, LANES)],
                        )
                for u in T.unroll(CHAINS):
                    y[p, u, lanes_at(0, LANES)] = acc[u, lanes_at(0, LANES)]

    return products


def _added(acc: Any, left: Any, right: Any) -> Any:
    return T.call_llvm_pure_intrin(
        codegen.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
        acc,
        T.reinterpret(left, dtype="int8x64"),
        T.reinterpret(right, dtype="int8x64"),
        dtype="int32x16",
    )


def built(kernel: tvm.tirx.PrimFunc, isa: Isa) -> Any:
    """The kernel as a function of tensors."""
    named = kernel.with_attr("global_symbol", "kernel")
    return tvm.tirx.build(named, target=target_for(isa))["kernel"]


class Limits:
    """Both limits, ready to be measured again and again in a process that runs a model."""

    def __init__(self, size: int = SIZE) -> None:
        self.threads = configure_threads()
        isa = choose().isa
        self._size = size
        self._sum = built(summing(size // 4), isa)
        self._data = tvm_ffi.from_dlpack(written(size).view(np.float32))
        self._sums = tvm.runtime.tensor(np.zeros((PIECES, LANES), np.float32))
        self._multiply = built(multiplying(self.threads), isa) if isa is VNNI else None
        self._operands = tvm.runtime.tensor(np.full((2, LANES), 0x01010101, np.int32))
        shape = (self.threads, CHAINS, LANES)
        self._products = tvm.runtime.tensor(np.zeros(shape, np.int32))

    def bandwidth(self) -> float:
        """GB/s of the better of three readings: what others take away is no limit of ours."""
        return self._size / min(_seconds(self._sum, self._data, self._sums) for _ in range(3)) / 1e9

    def vnni(self) -> float | None:
        """GOPS of the better of three; None for a processor without VNNI."""
        if self._multiply is None:
            return None
        least = min(_seconds(self._multiply, self._operands, self._products) for _ in range(3))
        return self.threads * CHAINS * TURNS * 2 * 4 * LANES / least / 1e9


def written(size: int) -> npt.NDArray[Any]:
    """uint8 zeros that have been written, in the kind of memory that packed weights have."""
    array = zeroed(size)
    array[:] = 0
    return array


def _seconds(function: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    size = model_path(arguments.model).stat().st_size
    limits = Limits()
    print_configuration("limits", model=f"{size / 1e6:.1f} MB", threads=limits.threads)
    found = Spread.of([limits.bandwidth() for _ in range(arguments.repeat)])
    bound = found.high * 1e9 / size
    print(f"reading: {found} GB/s; at best {bound:.0f} readings of the file a second")
    if limits.vnni() is not None:
        rates = [limits.vnni() or 0.0 for _ in range(arguments.repeat)]
        print(f"products of 8-bit numbers: {Spread.of(rates)} GOPS")


if __name__ == "__main__":
    main()
