"""The CUDA runtime (libcudart) through ctypes, and TVM's part for GPUs on top of it.

Source: "CUDA Runtime API", 13.0. Kernels are launched by TVM; what TVM has no function for, or
copies more than once, is called here.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from mlc_llm.backends.cpu.device import load_runtime
from mlc_llm.backends.cuda.driver import Driver
from mlc_llm.backends.cuda.packages import load_library
from mlc_llm.backends.cuda.workspace import register
from mlc_llm.errors import DeviceFailed, MLCError, UnusableDevice

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
"""cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost and cudaMemcpyDeviceToDevice."""
_NO_MEMORY = 2
_NO_TIMES = 2
"""cudaEventDisableTiming."""
_ref = ctypes.byref


class Runtime:
    """The runtime's functions that are used here. Each raises DeviceFailed if it fails, MemoryError
    if memory is lacking."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudaGetErrorName.restype = ctypes.c_char_p
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its name."""
        if result := getattr(self._library, name)(*arguments):
            self._library.cudaGetLastError()  # else the next call would report it again
            words = f"{name} failed: {self._words(result)}"
            raise MemoryError(words) if result == _NO_MEMORY else DeviceFailed(words)

    def copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        """Copies bytes in the order of the stream. kind: TO_DEVICE, TO_HOST or ON_DEVICE."""
        arguments = ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind
        self.call("cudaMemcpyAsync", *arguments, ctypes.c_void_p(stream))

    def fill(self, start: int, size: int, stream: int) -> None:
        """Makes bytes zero in the order of the stream."""
        arguments = ctypes.c_void_p(start), 0, ctypes.c_size_t(size)
        self.call("cudaMemsetAsync", *arguments, ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        """Until all that was given to the stream is done. Raises DeviceFailed for what failed in
        it, an illegal access of a kernel say."""
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def allocate(self, size: int) -> int:
        """The address of so many bytes on the GPU."""
        start = ctypes.c_void_p()
        try:
            self.call("cudaMalloc", _ref(start), ctypes.c_size_t(size))
        except MemoryError as error:
            free = self.free_memory()[0] >> 20
            words = f"the GPU has {free} MiB free, and {-(-size >> 20)} MiB are needed in one piece"
            raise MemoryError(words) from error
        return start.value or 0

    def free(self, start: int) -> None:
        """Gives memory of the GPU back. Raises nothing: after a kernel has failed every call does,
        and the driver takes the memory back when the process ends."""
        with suppress(MLCError, MemoryError):
            self.call("cudaFree", ctypes.c_void_p(start))

    def pinned(self, size: int) -> PinnedMemory:
        """Memory of the host that the GPU reads and writes itself."""
        start = ctypes.c_void_p()
        self.call("cudaMallocHost", _ref(start), ctypes.c_size_t(size))
        assert start.value
        return PinnedMemory(self, start.value, size)

    def free_memory(self) -> tuple[int, int]:
        """Free bytes of the GPU, and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", _ref(free), _ref(total))
        return free.value, total.value

    def _words(self, result: int) -> str:
        name, text = map(bytes.decode, self._names(result))
        return f"{name} ({text})"

    def _names(self, result: int) -> tuple[bytes, bytes]:
        return self._library.cudaGetErrorName(result), self._library.cudaGetErrorString(result)


class PinnedMemory:
    """Memory of the host, given back when nothing refers to it any more."""

    def __init__(self, runtime: Runtime, start: int, size: int) -> None:
        self._runtime, self.start, self.size = runtime, start, size

    def view(self) -> memoryview:
        """Its bytes. Whoever uses them keeps this object."""
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.start)).cast("B")

    def __del__(self) -> None:
        with suppress(MLCError, MemoryError):  # as `Runtime.free`
            self._runtime.call("cudaFreeHost", ctypes.c_void_p(self.start))


class Event:
    """A mark in the order of a stream."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._handle = runtime, ctypes.c_void_p()
        runtime.call("cudaEventCreateWithFlags", _ref(self._handle), _NO_TIMES)

    def record(self, stream: int) -> None:
        """Behind all that was given to the stream."""
        self._runtime.call("cudaEventRecord", self._handle, ctypes.c_void_p(stream))

    def wait(self) -> None:
        """Until all before the mark is done."""
        self._runtime.call("cudaEventSynchronize", self._handle)

    def __del__(self) -> None:
        if self._handle:
            with suppress(MLCError, MemoryError):  # as `Runtime.free`
                self._runtime.call("cudaEventDestroy", self._handle)


@cache
def load_cuda() -> Runtime:
    """The CUDA runtime, with TVM's part for GPUs loaded.

    Raises UnusableDevice if a package, a driver or a GPU is missing.
    """
    Driver()
    library = load_library("nvidia-cuda-runtime", "libcudart.so.13", for_all=True)
    load_runtime()
    spec = find_spec("tvm")
    assert spec is not None and spec.submodule_search_locations, "load_runtime has found it"
    folders = [Path(folder) / "lib" for folder in spec.submodule_search_locations]
    try:
        load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=folders)
        tvm_ffi.get_global_func("device_api.cuda")
    except (OSError, RuntimeError, ValueError) as error:
        words = f"TVM's runtime for CUDA does not load ({error}); install apache-tvm again"
        raise UnusableDevice(words) from error
    register()
    return Runtime(library)
