"""Links a model library for a GPU into this process."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm_ffi
import tvm_ffi_orcjit

from mlc_llm.backends.closures import closure
from mlc_llm.backends.cuda.architectures import ARCHITECTURES
from mlc_llm.backends.cuda.driver import Gpu, shown
from mlc_llm.backends.cuda.early_launch import launched_as_wanted
from mlc_llm.backends.cuda.runtime import load_cuda
from mlc_llm.library.metadata import BrokenLibrary

_CPU, _GPU = (1, 0), (2, 0)
"""Types of device, as in DLPack, and indices."""
_NAIVE_ALLOCATOR, _POOLED_ALLOCATOR = 1, 2
_NO_MEMORY = re.compile("out of memory|Cannot allocate|bad_alloc|failed to map")


def check_fits(folder: Path, requires: Sequence[str], gpu: Gpu) -> None:
    """Raises BrokenLibrary if the library's machine code is for another GPU. requires: the name of
    its architecture."""
    (name,) = requires or ("no known GPU",)
    made_for = ARCHITECTURES.get(name)
    if made_for is None or not made_for.runs_on(gpu.capability):
        best = gpu.architecture
        words = f"; compile it with --arch {best.name}" if best else ""
        mine = f"{gpu.name} is {shown(gpu.capability)}"
        raise BrokenLibrary(f"{folder}: it is compiled for {name}, and {mine}{words}")


class CudaLibrary:
    """Functions by name: bytecode, the code of the host that launches kernels, and the kernels."""

    def __init__(self, bytecode: Path, launchers: Path, kernels: Path) -> None:
        """Raises BrokenLibrary, MemoryError, UnusableDevice."""
        self.launches = 0
        """Nobody counts: a step takes less than a second."""
        load_cuda()
        try:
            load = tvm_ffi.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
            executable = load(str(bytecode))
            # Plain functions, linked without the runtime of C++, for which it would ask a compiler.
            self._session = tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
            host = self._session.load_module(str(launchers), cxx=os.devnull)
            host.import_module(load_kernels(kernels.read_bytes()))
            executable.import_module(host)
            self._vm = executable["vm_load_executable"]()
            gpu, host_too = (*_GPU, _POOLED_ALLOCATOR), (*_CPU, _NAIVE_ALLOCATOR)
            self._vm["vm_initialization"](*gpu, *host_too)
        except Exception as error:  # what TVM raises has no base class of its own
            if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
                raise MemoryError(str(error)) from error
            raise BrokenLibrary(f"{bytecode.parent}: {error}") from error

    def __getitem__(self, name: str) -> LibraryFunction:
        return LibraryFunction(self._vm[name], self)

    def with_last(self, name: str, last: Sequence[tvm_ffi.Tensor]) -> LibraryFunction:
        return LibraryFunction(closure(self._vm, name, last), self)

    def __del__(self) -> None:
        """Gives back code, and the memory of steps that TVM keeps for the next one.

        Where Python finds a circle of lost objects it calls this before it lets go of any of them:
        then the memory is given back at the end of its search.
        """
        self.__dict__.clear()
        _give_back()
        if _at_end_of_search not in gc.callbacks:
            gc.callbacks.append(_at_end_of_search)


def _at_end_of_search(phase: str, info: object) -> None:
    if phase == "stop":
        gc.callbacks.remove(_at_end_of_search)
        _give_back()


def _give_back() -> None:
    """Gives back memory that TVM keeps and nothing uses."""
    with suppress(Exception):  # as `Runtime.free`
        tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()


class LibraryFunction:
    """A function that keeps its library: what it has made is given back behind it."""

    __slots__ = ("_function", "_library")

    def __init__(self, function: tvm_ffi.Function, library: CudaLibrary) -> None:
        self._function, self._library = function, library

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __del__(self) -> None:
        del self._function  # in this order
        del self._library


def load_kernels(data: bytes) -> tvm_ffi.Module:
    """The module of a `device.bin`. Its code goes to the GPU when a kernel is first launched."""
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.cuda")
    return load(launched_as_wanted(data))
