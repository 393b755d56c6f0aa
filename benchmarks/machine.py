"""The limits of this machine: memory bandwidth and products, to compare speeds with.

    python benchmarks/machine.py

Decode reads every weight once a token, so it cannot be faster than the read bandwidth divided by
the size of the weights. Prompts cannot be faster than the processor's products of 8-bit numbers.
Each limit is measured by a kernel that does nothing else. TVM compiles it, and the threads that run
a model run it:

* a sum over 512 MiB, much more than any cache holds, in huge pages if the system has them
* `vpdpbusd` on registers (a product and an addition are two operations); for AVX2, `vpmaddwd` with
  the addition behind it, on numbers of 16 bits
* `tdpbssd` with one load of a tile from the first cache each: eight registers allow no fewer loads
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from common import Spread, model_path, print_configuration
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import AMX, AVX2, VNNI, VNNI_BF16, Isa
from mlc_llm.backends.cpu.memory import zeroed
from mlc_llm.backends.cpu.target import choose, missing_features, target_for
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.dot import multiply_words
from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at

SIZE = 512 << 20
LANES, PIECES = 16, 64
HAVE_VNNI = (VNNI.name, VNNI_BF16.name, AMX.name)
CHAINS = 12
"""Sums that do not wait for each other. So many keep every unit of the processor busy."""
TURNS = 1_000_000
TILE_TURNS = 20_000
"""A turn has four products."""
PRODUCTS = {
    "vnni": "8-bit numbers on vectors",
    "avx2": "16-bit numbers on vectors of AVX2",
    "amx": "8-bit numbers on tiles",
}
TILE_OPERATIONS = 2 * amx.ROWS * amx.ROWS * amx.ROW_BYTES


def summing(size: int) -> tvm.tirx.PrimFunc:
    """Adds up float32 [size] in PIECES parallel pieces. Reading takes nearly all the time."""
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


def multiplying(threads: int, isa: Isa) -> tvm.tirx.PrimFunc:
    """CHAINS sums of TURNS products each, on every thread, with operands in registers: x [lanes],
    and of the other one only a word. For `vpmaddwd` it is the sum itself: of what stays the same,
    only the addition would be computed each time."""
    lanes = isa.lanes

    def added(acc: tvm.tirx.PrimExpr, x: tvm.tirx.PrimExpr) -> tvm.tirx.PrimExpr:
        return multiply_words(isa, acc, acc if isa.sums == 1 else x, T.int32(0x01010101))

    @T.prim_func(private=True, s_tir=True)
    def products(x: T.Buffer((lanes,), "int32"), y: T.Buffer((threads, CHAINS, lanes), "int32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for p in T.parallel(threads):
                acc = T.alloc_buffer((CHAINS, lanes), "int32")
                for u in T.unroll(CHAINS):
                    acc[u, lanes_at(0, lanes)] = x[lanes_at(0, lanes)]
                for _ in T.serial(TURNS):
                    for u in T.unroll(CHAINS):
                        acc[u, lanes_at(0, lanes)] = added(
                            acc[u, lanes_at(0, lanes)], x[lanes_at(0, lanes)]
                        )
                for u in T.unroll(CHAINS):
                    y[p, u, lanes_at(0, lanes)] = acc[u, lanes_at(0, lanes)]

    return products


def multiplying_tiles(threads: int) -> tvm.tirx.PrimFunc:
    """TILE_TURNS times four loads of tiles from x and their four products, on every thread."""

    @T.prim_func(private=True, s_tir=True)
    def products(
        x: T.Buffer((4, amx.ROWS, amx.ROWS), "int32"),
        y: T.Buffer((threads, 4, amx.ROWS, amx.ROWS), "int32"),
    ):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for p in T.parallel(threads):
                shape = T.alloc_buffer((amx.SHAPE_WORDS,), "int32")
                amx.configure(shape, amx.ROWS)
                for i in T.unroll(4):
                    T.evaluate(amx.clear(amx.SUMS + i))
                for _ in T.serial(TILE_TURNS):
                    for i in T.unroll(4):
                        T.evaluate(
                            amx.load(amx.X_TILES + i, T.address_of(x[i, 0, 0]), amx.ROW_BYTES)
                        )
                    for i in T.unroll(2):
                        for j in T.unroll(2):
                            T.evaluate(
                                amx.multiply(amx.SUMS + 2 * i + j, amx.X_TILES + i, amx.W_TILES + j)
                            )
                for i in T.unroll(4):
                    T.evaluate(amx.store(amx.SUMS + i, T.address_of(y[p, i, 0, 0]), amx.ROW_BYTES))
                T.evaluate(amx.release())

    return products


def products_of_word(isa: Isa) -> int:
    """How many products one instruction makes in a lane of 32 bits."""
    return 2 if isa.sums == 1 else 4


def built(kernel: tvm.tirx.PrimFunc, isa: Isa) -> tvm_ffi.Function:
    """The kernel as a function of tensors."""
    named = kernel.with_attr("global_symbol", "kernel")
    return tvm.tirx.build(named, target=target_for(isa))["kernel"]


class Products:
    """`multiplying`, ready to run."""

    def __init__(self, isa: Isa, threads: int) -> None:
        self._run, self._isa, self._threads = built(multiplying(threads, isa), isa), isa, threads
        self._x = tvm.runtime.tensor(np.full(isa.lanes, 0x01010101, np.int32))
        self._y = tvm.runtime.tensor(np.zeros((threads, CHAINS, isa.lanes), np.int32))

    def __call__(self) -> None:
        self._run(self._x, self._y)

    @property
    def count(self) -> int:
        """Products of two numbers in a run."""
        return self._threads * CHAINS * TURNS * products_of_word(self._isa) * self._isa.lanes

    def rate(self) -> float:
        """GOPS of the fastest of three runs."""
        return 2 * self.count / min(_seconds(self) for _ in range(3)) / 1e9


class Limits:
    """Measures the limits, as often as wanted, in a process that also runs a model."""

    def __init__(self, size: int = SIZE) -> None:
        self.threads = configure_threads()
        isa = choose().isa
        self._size = size
        self._sum = built(summing(size // 4), isa)
        self._data = tvm_ffi.from_dlpack(written(size).view(np.float32))
        self._sums = tvm.runtime.tensor(np.zeros((PIECES, LANES), np.float32))
        self._vnni = Products(isa, self.threads) if isa.name in HAVE_VNNI else None
        self._avx2 = None if missing_features(AVX2.name) else Products(AVX2, self.threads)
        self._multiply_tiles = built(multiplying_tiles(self.threads), isa) if isa is AMX else None
        tiles = (4, amx.ROWS, amx.ROWS)
        self._tiles = tvm.runtime.tensor(np.full(tiles, 0x01010101, np.int32))
        self._tile_sums = tvm.runtime.tensor(np.zeros((self.threads, *tiles), np.int32))

    def bandwidth(self) -> float:
        """GB/s of the fastest of three readings: other processes may slow down the others."""
        return self._size / min(_seconds(self._sum, self._data, self._sums) for _ in range(3)) / 1e9

    def vnni(self) -> float | None:
        """GOPS of the fastest of three runs; None for a processor without VNNI."""
        return None if self._vnni is None else self._vnni.rate()

    def avx2(self) -> float | None:
        """GOPS with numbers of 16 bits, by what AVX2 has; None for a processor without it."""
        return None if self._avx2 is None else self._avx2.rate()

    def amx(self) -> float | None:
        """GOPS of the fastest of three runs on loaded tiles; None for a processor without AMX."""
        if self._multiply_tiles is None:
            return None
        least = min(_seconds(self._multiply_tiles, self._tiles, self._tile_sums) for _ in range(3))
        return self.threads * TILE_TURNS * 4 * TILE_OPERATIONS / least / 1e9

    def all(self) -> dict[str, float | None]:
        """All limits, by their names in `figures.py`."""
        return {"bandwidth": self.bandwidth(), **self.products()}

    def products(self) -> dict[str, float | None]:
        """Those of products."""
        return {"vnni": self.vnni(), "avx2": self.avx2(), "amx": self.amx()}


def written(size: int) -> npt.NDArray[np.uint8]:
    """`size` zero bytes that have been written, in the same kind of memory as packed weights."""
    array = zeroed(size).numpy()
    array[:] = 0
    return array


def _seconds(function: Callable[..., object], *arguments: object) -> float:
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
    found_rates = [limits.products() for _ in range(arguments.repeat)]
    for name, what in PRODUCTS.items():
        rates = [rate for one in found_rates if (rate := one[name]) is not None]
        if rates:
            print(f"products of {what}: {Spread.of(rates)} GOPS")


if __name__ == "__main__":
    main()
