"""Calls kernels for GPUs on NumPy arrays, without a GPU.

g++ compiles the CUDA source of a kernel for the CPU (`emulator/cuda.h`), and the stand-in for
NVIDIA's driver runs it where a GPU would. So the way from a call to a launch is the real one, with
the real arguments and sizes of grids. It happens in a process of its own, which is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import kept
import numpy as np
import numpy.typing as npt
import tvm
from emulated_programs import DEVICE_FILE, HOST_FILE, LIBRARY_FILE, serve
from emulation import EMULATOR, compile_emulated
from fake_cuda import fake_machine_code

from mlc_llm.backends.cuda.build import only_source, source_of, target_of
from mlc_llm.backends.cuda.device_bin import compiled

Array = npt.NDArray[Any]
ARCH = "sm_90a"


class Emulator:
    """A process that calls kernels."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def __call__(self, kernel: tvm.tirx.PrimFunc, *arrays: Array) -> list[Array]:
        """The arrays as the kernel leaves them. Threads of a block run in both orders, which must
        give the same bits; nothing behind the end of an array may be touched."""
        built = _built(kernel, self._folder)
        first, second = (self._call(built, arrays, order) for order in ("", "backwards"))
        for one, other in zip(first, second, strict=True):
            assert one.tobytes() == other.tobytes(), "the order of the threads matters"
        return first

    def _call(self, built: Path, arrays: tuple[Array, ...], order: str) -> list[Array]:
        files = [str(self._folder / f"{number}.npy") for number in range(len(arrays))]
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
        assert self._process.stdin and self._process.stdout
        print(json.dumps([str(built), files, order]), file=self._process.stdin, flush=True)
        said = self._process.stdout.readline()
        assert said, f"the kernel has ended its process: {self._process.wait(60)}"
        assert json.loads(said) is None, json.loads(said)
        return [np.load(file) for file in files]


@contextmanager
def emulator(fake: dict[str, str], folder: Path) -> Iterator[Emulator]:
    """fake: as the fixture of that name."""
    place = str(Path(__file__).parent)
    environment = os.environ | fake
    environment["PYTHONPATH"] = os.pathsep.join((place, fake["PYTHONPATH"]))
    command = [sys.executable, "-c", f"import {serve.__module__} as m; m.{serve.__name__}()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Emulator(process, folder)


class Built(NamedTuple):
    """The code of a kernel: what launches it, and the CUDA source that TVM has made."""

    host: tvm.runtime.Module
    source: str


def built_source(kernel: tvm.tirx.PrimFunc, arch: str = ARCH) -> Built:
    named = kernel.with_attr("global_symbol", "kernel")
    with only_source():
        module = tvm.IRModule({"kernel": named})
        host = tvm.compile(module, target=target_of(arch), tir_pipeline="tirx").mod
        return Built(host, source_of(host).code.decode())


def _built(kernel: tvm.tirx.PrimFunc, folder: Path) -> Path:
    """A folder with the files that `emulated_programs` reads."""
    host, source = built_source(kernel)
    name = kept.digest(source, files=sorted(EMULATOR.iterdir()))
    place = folder / name
    if not place.exists():
        place.mkdir()
        library = kept.folder("kernels") / f"{name}.so"
        shutil.copy(
            kept.entry(library, lambda new: compile_emulated(source, new)), place / LIBRARY_FILE
        )
        host.write_to_file(str(place / HOST_FILE))
        module = compiled(source_of(host), lambda text: fake_machine_code())
        (place / DEVICE_FILE).write_bytes(module.to_bytes())
    return place
