"""NVIDIA's driver, through ctypes: which GPUs there are, and what prevents that they compute.

Source: "CUDA Driver API", 13.0. Nothing here needs a package, TVM or NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from mlc_llm.backends.cuda.architectures import ARCHITECTURES, Architecture, best_for
from mlc_llm.errors import UnusableDevice
from mlc_llm.record import record

LIBRARY = "libcuda.so.1"
LEAST_VERSION = (13, 0)
"""Of CUDA, which the driver has to know. Driver 580 is the first that does."""
LEAST_FREE = 512 * 2**20
"""Bytes. The default model and its pages fit into them."""
_INSTALL = "install NVIDIA's driver 580 or later"
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NO_DEVICE = 100
_ref = ctypes.byref


@record()
class Gpu:
    """A GPU that the driver shows."""

    index: int
    name: str
    capability: tuple[int, int]
    total_memory: int
    free_memory: int
    """Bytes."""

    @property
    def architecture(self) -> Architecture | None:
        """What code is compiled for; None: its code is not known here."""
        return best_for(self.capability)

    @property
    def problem(self) -> str | None:
        """Why it cannot compute."""
        if self.architecture is None:
            known = ", ".join(ARCHITECTURES)
            return f"{self.name} is {shown(self.capability)}, and there is code for {known} only"
        if self.free_memory < LEAST_FREE:
            free, total = self.free_memory >> 20, self.total_memory >> 20
            return (
                f"only {free} MiB of the {total} MiB of {self.name} are free, and the default "
                f"model needs {LEAST_FREE >> 20}; end other programs on it"
            )
        return None


def shown(capability: tuple[int, int]) -> str:
    """A compute capability as an architecture's name: "sm_90"."""
    return f"sm_{capability[0]}{capability[1]}"


class Driver:
    """The driver, which is there and new enough."""

    def __init__(self) -> None:
        """Raises UnusableDevice if there is no driver, no GPU, or the driver is too old."""
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise UnusableDevice(f"no NVIDIA driver can be loaded ({error}); {_INSTALL}") from error
        self.version = self._version()
        if self.version < LEAST_VERSION:
            words = f"the NVIDIA driver knows CUDA {_dotted(self.version)} and "
            raise UnusableDevice(f"{words}{_dotted(LEAST_VERSION)} is needed; {_INSTALL}")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises UnusableDevice with its name if it fails."""
        result = getattr(self._library, name)(*arguments)
        if result == _NO_DEVICE:
            words = "the NVIDIA driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
            raise UnusableDevice(words)
        if result:
            raise UnusableDevice(f"the NVIDIA driver failed in {name}: {self._words(result)}")

    def gpus(self) -> list[Gpu]:
        """All GPUs that it shows. Raises UnusableDevice."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", _ref(count))
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> Gpu:
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        self.call("cuDeviceGet", _ref(device), index)
        self.call("cuDeviceGetName", name, len(name), device)
        capability = self._attribute(_MAJOR, device), self._attribute(_MINOR, device)
        free, total = self._memory(device)
        return Gpu(index, name.value.decode(errors="replace"), capability, total, free)

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", _ref(value), number, device)
        return value.value

    def _memory(self, device: ctypes.c_int) -> tuple[int, int]:
        """Free bytes, and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._context(device):
            self.call("cuMemGetInfo_v2", _ref(free), _ref(total))
        return free.value, total.value

    @contextmanager
    def _context(self, device: ctypes.c_int) -> Iterator[None]:
        """The GPU's own context, which the CUDA runtime uses as well, in this thread."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", _ref(context), device)
        try:
            self.call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self._library.cuCtxPopCurrent_v2(_ref(ctypes.c_void_p()))
        finally:
            self._library.cuDevicePrimaryCtxRelease_v2(device)

    def _version(self) -> tuple[int, int]:
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", _ref(number))
        return number.value // 1000, number.value % 1000 // 10

    def _words(self, result: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._library.cuGetErrorName(result, _ref(name))
        self._library.cuGetErrorString(result, _ref(text))
        return f"{_text(name) or result} ({_text(text) or 'no more is known'})"


def usable_gpu() -> Gpu:
    """The first GPU. Raises UnusableDevice with what is missing, in one line."""
    found = Driver().gpus()
    if not found:
        raise UnusableDevice("there is no GPU 0: the NVIDIA driver shows 0")
    if problem := found[0].problem:
        raise UnusableDevice(problem)
    return found[0]


def usable_gpus(count: int) -> list[Gpu]:
    """The first ones, of one kind. Raises UnusableDevice, also if there are fewer."""
    found = Driver().gpus()
    if len(found) < count:
        words = f"each rank needs a GPU of its own, and the NVIDIA driver shows {len(found)}"
        raise UnusableDevice(f"{words}; give at most that many ranks")
    first, *others = found[:count]
    for one in (first, *others):
        if one.problem:
            raise UnusableDevice(f"GPU {one.index}: {one.problem}")
        if one.capability != first.capability:
            kinds = f"{one.name} is {shown(one.capability)}, {first.name} {shown(first.capability)}"
            raise UnusableDevice(f"GPU {one.index}: {kinds}, and ranks need GPUs of one kind")
    return [first, *others]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _text(found: ctypes.c_char_p) -> str:
    return (found.value or b"").decode(errors="replace")
