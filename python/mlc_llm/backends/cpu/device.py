"""The CPU at run time: its memory, and the code of a library linked into this process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from mlc_llm.backends.closures import closure
from mlc_llm.backends.cpu import amx
from mlc_llm.backends.cpu.memory import HUGE_PAGE, HostScratch, Pool, growing, zeroed
from mlc_llm.backends.cpu.rank_sums import SharedSums
from mlc_llm.backends.cpu.staging import ALIGNMENT, HostStaging
from mlc_llm.backends.cpu.thread_team import ThreadTeam
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.backends.ranks.meeting import Meeting
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.support.distributions import light_metadata
from mlc_llm.support.host_array import HostArray, item_bytes, read_int32s

with light_metadata():
    import tvm_ffi_orcjit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

_CPU = (1, 0)
"""Device type (as in DLPack) and index."""
_NAIVE_ALLOCATOR = 1
_NO_MEMORY = re.compile("failed to reserve|failed to map|Cannot allocate|bad_alloc")


class CpuDevice:
    """See `backends.device.Device`. Tensors are memory of this process, so nothing is copied."""

    shows_memory = True

    def __init__(self) -> None:
        self._pool = Pool()

    def link(
        self, folder: Path, files: Sequence[str], requires: Sequence[str], ranks: int = 1
    ) -> LinkedLibrary:
        threads = configure_threads(ranks)
        if "amx" in requires and not amx.permitted():
            raise BrokenLibrary(f"{folder}: the system does not permit the AMX tiles that it uses")
        bytecode, *objects = (folder / name for name in files)
        return LinkedLibrary(bytecode, objects, threads)

    def zeros(self, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
        """A tensor of zeros. Memory is taken from the system when it is first written."""
        size = prod(shape) * item_bytes(dtype)
        memory = self._pool.take(size) if size < HUGE_PAGE else growing(size)
        return tvm_ffi.from_dlpack(memory.seen_as(dtype, tuple(shape)))

    def scratch(self, size: int) -> HostScratch:
        return HostScratch(size)

    def upload(self, array: npt.NDArray[Any] | HostArray) -> tvm_ffi.Tensor:
        """A tensor over the array's own memory if compiled code can read it, or over a copy."""
        if isinstance(array, HostArray):
            return tvm_ffi.from_dlpack(array.copy() if array.address % ALIGNMENT else array)
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
            copy = zeroed(array.nbytes).numpy().view(array.dtype).reshape(array.shape)
            copy[...] = array
            array = copy
        return tvm_ffi.from_dlpack(array)

    def write(self, tensor: tvm_ffi.Tensor, index: int, values: npt.ArrayLike) -> None:
        self.read(tensor)[index] = values

    def staging(self) -> HostStaging:
        return HostStaging()

    def repeats(self) -> None:
        """Nothing is gained: a call of compiled code takes a microsecond."""

    def read(self, tensor: tvm_ffi.Tensor) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = np.from_dlpack(tensor)
        return values

    def fetch(self, tensors: Sequence[tvm_ffi.Tensor]) -> HostValues:
        return HostValues(tensors)

    def rank_key(self) -> bytes:
        """Nothing: the meeting suffices."""
        return b""

    def rank_sums(self, meeting: Meeting, key: bytes) -> SharedSums:
        assert not key, "it is that of another device"
        return SharedSums(meeting)

    def move(
        self, source: tvm_ffi.Tensor, first: int, target: tvm_ffi.Tensor, at: int, count: int
    ) -> None:
        self.read(target)[at : at + count] = self.read(source)[first : first + count]


class HostValues:
    """See `backends.device.Fetched`: they are there already."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Sequence[tvm_ffi.Tensor]) -> None:
        self._tensors = tensors

    def values(self) -> Sequence[npt.NDArray[Any]]:
        return [np.from_dlpack(tensor) for tensor in self._tensors]

    def numbers(self) -> list[int]:
        first = self._tensors[0]
        return read_int32s(first.data_ptr(), first.shape[0])


class LinkedLibrary:
    """Functions by name, linked in memory without a compiler."""

    def __init__(self, bytecode: Path, objects: Sequence[Path], threads: int) -> None:
        """threads: that compute. Raises BrokenLibrary, MemoryError."""
        load_runtime()
        try:
            load = tvm_ffi.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
            executable = load(str(bytecode))
            # Plain functions, linked without the runtime of C++, for which it would ask a compiler.
            self._session = tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
            code = self._session.load_module([str(one) for one in objects], cxx=os.devnull)
            self._team = ThreadTeam(code, threads)
            executable.import_module(code)
            # The default allocator would keep buffers for every size of step there ever was.
            self._vm = executable["vm_load_executable"]()
            self._vm["vm_initialization"](*_CPU, _NAIVE_ALLOCATOR)
        except Exception as error:  # what TVM raises has no base class of its own
            if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
                raise MemoryError(str(error)) from error  # another library needs no less
            raise BrokenLibrary(f"{bytecode.parent}: {error}") from error

    def __getitem__(self, name: str) -> tvm_ffi.Function:
        return self._vm[name]

    @property
    def launches(self) -> int:
        return self._team.launches

    def with_last(self, name: str, last: Sequence[tvm_ffi.Tensor]) -> Callable[..., object]:
        return self._team.leading(closure(self._vm, name, last))


@cache
def load_runtime() -> None:
    """Loads TVM's runtime library alone: it takes milliseconds, the compiler half a second.

    A later import of `tvm` finds it loaded.
    """
    package = find_spec("tvm")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package apache-tvm is not installed")
    folders = [Path(folder) / "lib" for folder in package.submodule_search_locations]
    load_lib_ctypes("apache-tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders)
