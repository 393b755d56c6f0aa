"""What the emulator of kernels finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from emulated import ARCH, Emulator, MachineCode, emulator
from emulation import compile_emulated
from fake_cuda import emulated_machine_code
from tvm.script import tirx as T

from mlc_llm.kernels.cuda.threads import SCHEDULED

pytestmark = pytest.mark.cuda
SIZE = 64


def reversing(has_barrier: bool, reach: int = 0) -> tvm.tirx.PrimFunc:
    """int32 [SIZE], the last one first. reach: so much further it reads."""

    @T.prim_func(private=True)
    def reverse(x: T.handle, y: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(SCHEDULED)
        n = T.int32()
        X = T.match_buffer(x, (n,), "int32")
        Y = T.match_buffer(y, (SIZE,), "int32")
        T.device_entry()
        block = T.cta_id([1])
        thread = T.thread_id([SIZE])
        shared = T.alloc_buffer((SIZE,), "int32", scope="shared")
        shared[thread] = X[thread + reach + block]
        if has_barrier:
            T.cuda.cta_sync()
        Y[thread] = shared[SIZE - 1 - thread]

    return reverse


@T.prim_func(private=True)
def _torn_warp(x: T.handle):  # type: ignore[no-untyped-def]
    T.func_attr(SCHEDULED)
    X = T.match_buffer(x, (SIZE,), "float32")
    T.device_entry()
    T.cta_id([1])
    thread = T.thread_id([SIZE])
    if thread < SIZE - 1:
        X[thread] = T.cuda.warp_sum(X[thread])


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(SIZE, dtype=np.int32), np.zeros(SIZE, np.int32)


@pytest.fixture
def emulate(fake: dict[str, str], tmp_path: Path) -> Iterator[Emulator]:
    """Not a GPU."""
    with emulator(fake, tmp_path) as started:
        yield started


def test_a_device_may_run_its_own_code(fake: dict[str, str], tmp_path: Path) -> None:
    """As it is with `--gpu`, with g++ and the stand-in instead of NVIDIA's compiler and driver."""
    sources = []

    def compiled(source: str) -> bytes:
        sources.append(source)
        compile_emulated(source, tmp_path / "code.so")
        return emulated_machine_code(tmp_path / "code.so")

    with emulator(fake, tmp_path, MachineCode(ARCH, compiled)) as started:
        _, y = started(reversing(True), *arrays())
    assert y.tolist() == list(range(SIZE))[::-1] and len(sources) == 1


def test_a_barrier_that_is_missing(emulate: Emulator) -> None:
    _, y = emulate(reversing(True), *arrays())
    assert y.tolist() == list(range(SIZE))[::-1]
    with pytest.raises(AssertionError, match="the order of the threads matters"):
        emulate(reversing(False), *arrays())


def test_threads_that_wait_for_each_other(emulate: Emulator) -> None:
    with pytest.raises(AssertionError, match="CUDA_ERROR_FAKE"):
        emulate(_torn_warp, np.zeros(SIZE, np.float32))


def test_an_access_behind_the_end(fake: dict[str, str], tmp_path: Path) -> None:
    with (
        emulator(fake, tmp_path) as started,
        pytest.raises(AssertionError, match="has ended its process: -11"),
    ):
        started(reversing(True, SIZE), *arrays())
