"""Calls kernels for GPUs on NumPy arrays, without a GPU or on one.

g++ compiles the CUDA source of a kernel for the CPU (`emulator/cuda.h`), and the stand-in for
NVIDIA's driver runs it where a GPU would. So the way from a call to a launch is the real one, with
the real arguments and sizes of grids. It happens in a process of its own, which is kept. With
`--gpu` NVIDIA's compiler and driver take their places, and all else stays.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import kept
import numpy as np
import numpy.typing as npt
import pytest
import tvm
from emulated_programs import DEVICE_FILE, HOST_FILE, LIBRARY_FILE, serve
from emulation import EMULATOR, compile_emulated
from fake_cuda import fake_machine_code

from mlc_llm.backends.cuda.build import only_source, source_of, target_of
from mlc_llm.backends.cuda.device_bin import compiled

Array = npt.NDArray[Any]
ARCH = "sm_90a"


@dataclass(frozen=True)
class MachineCode:
    """What a device runs by itself: for an architecture, made of CUDA source."""

    arch: str
    compile: Callable[[str], bytes]


class Emulator:
    """A process that calls kernels."""

    def __init__(
        self, process: subprocess.Popen[str], folder: Path, code: MachineCode | None
    ) -> None:
        self._process, self._folder, self._code = process, folder, code

    def __call__(self, kernel: tvm.tirx.PrimFunc, *arrays: Array) -> list[Array]:
        """The arrays as the kernel leaves them. Threads of a block run in both orders, which must
        give the same bits; nothing behind the end of an array may be touched. (On a GPU the kernel
        runs twice.)"""
        built = _built(kernel, self._folder, self._code)
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
def emulator(
    fake: Mapping[str, str], folder: Path, code: MachineCode | None = None
) -> Iterator[Emulator]:
    """fake: as the fixture of that name; empty on a GPU. code: None: that of the emulator."""
    paths = (str(Path(__file__).parent), fake.get("PYTHONPATH") or os.pathsep.join(sys.path))
    environment = {**os.environ, **fake, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", f"import {serve.__module__} as m; m.{serve.__name__}()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Emulator(process, folder, code)


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


def _built(kernel: tvm.tirx.PrimFunc, folder: Path, code: MachineCode | None) -> Path:
    """A folder with the files that `emulated_programs` reads."""
    arch = ARCH if code is None else code.arch
    host, source = built_source(kernel, arch)
    if "wgmma" in source and arch != ARCH:
        pytest.skip(f"{arch} has no wgmma")
    name = kept.digest(source, files=sorted(EMULATOR.iterdir()))
    place = folder / name
    if not place.exists():
        place.mkdir()
        if code is None:
            shutil.copy(_kept_library(name, source), place / LIBRARY_FILE)
        host.write_to_file(str(place / HOST_FILE))
        make = (lambda text: fake_machine_code()) if code is None else code.compile
        (place / DEVICE_FILE).write_bytes(compiled(source_of(host), make).to_bytes())
    return place


def _kept_library(name: str, source: str) -> Path:
    """A kernel as a library for the CPU, compiled once for all runs."""
    library = kept.folder("kernels") / f"{name}.so"
    return kept.entry(library, lambda new: compile_emulated(source, new))
