"""NVIDIA's NCCL through ctypes: sums over GPUs, one process each, in the order of a stream.

Source: `nccl.h` of NCCL 2.32. Communicators do not block: where a call has not ended, its result
says so, and who waits for it looks again and can give up.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache

from mlc_llm.backends.cuda.packages import NCCL, load_library
from mlc_llm.backends.ranks.meeting import STALLED_S
from mlc_llm.errors import DeviceFailed, EngineDead

ID_BYTES = 128
"""NCCL_UNIQUE_ID_BYTES."""
INTERFACE_VARIABLE, OWN_INTERFACE = "NCCL_SOCKET_IFNAME", "lo"
"""Ranks are on one machine, so they find each other where no other machine listens."""
POLL_S = 0.001
CALL_S = 5.0
"""A thread that is in a call for longer will not come back by itself."""
_ASYNC = "ncclCommGetAsyncError"
_IN_PROGRESS = 7
"""ncclInProgress."""
_FLOAT32, _SUM = 7, 0
"""ncclFloat32, ncclSum."""
_MAGIC, _CONFIG_VERSION = 0xCAFEBEEF, 21400
"""Of a configuration that has what version 2.14 knew."""
_pointer, _int = ctypes.c_void_p, ctypes.c_int


class _Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * ID_BYTES),)


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", _int),
    )


SIGNATURES: dict[str, tuple[type, ...]] = {
    "ncclGetVersion": (_pointer,),
    "ncclGetUniqueId": (_pointer,),
    "ncclCommInitRankConfig": (_pointer, _int, _Id, _int, _pointer),
    "ncclAllReduce": (_pointer, _pointer, ctypes.c_size_t, _int, _int, _pointer, _pointer),
    "ncclCommGetAsyncError": (_pointer, _pointer),
    "ncclCommAbort": (_pointer,),
    "ncclGetErrorString": (_int,),
    "ncclGetLastError": (_pointer,),
}
"""Types of what the functions take. The last two give a text, and the others a result."""


class Nccl:
    """The library's functions that are used here. They raise DeviceFailed if they fail."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, types in SIGNATURES.items():
            getattr(library, name).argtypes = types
        library.ncclGetErrorString.restype = library.ncclGetLastError.restype = ctypes.c_char_p

    def result(self, name: str, *arguments: object) -> int:
        """Call a function by its name. Its result, which is no error."""
        found: int = getattr(self._library, name)(*arguments)
        self.check(name, found)
        return found

    def check(self, name: str, result: int) -> None:
        """Raises DeviceFailed if a function's result is an error."""
        if result not in (0, _IN_PROGRESS):
            kind, more = self._library.ncclGetErrorString(result), self._library.ncclGetLastError(0)
            words = " ".join(
                b": ".join(filter(None, (kind, more))).decode(errors="replace").split()
            )
            raise DeviceFailed(f"NCCL failed in {name}: {words}")

    def version(self) -> tuple[int, int, int]:
        number = _int()
        self.result("ncclGetVersion", ctypes.byref(number))
        return number.value // 10000, number.value // 100 % 100, number.value % 100

    def new_id(self) -> bytes:
        """By this, ranks find each other. It is good for one communicator."""
        found = _Id()
        self.result("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found.bytes)


class Communicator:
    """This process's part of a communicator. One thread adds up; another one may look at it, and
    abort it."""

    def __init__(
        self, nccl: Nccl, key: bytes, rank: int, ranks: int, look: Callable[[], None]
    ) -> None:
        """Returns when all ranks have come. key: of `Nccl.new_id`. The GPU is that of the calling
        thread. look: is called while this waits; raises EngineDead to end that. Raises
        DeviceFailed."""
        self._nccl, self._look, self._calls = nccl, look, threading.Lock()
        self._handle: int | None = None
        """None: it was aborted."""
        place = _pointer()
        config = _Config(ctypes.sizeof(_Config), _MAGIC, _CONFIG_VERSION, 0)
        name, own = "ncclCommInitRankConfig", _Id.from_buffer_copy(key)
        result = nccl.result(name, ctypes.byref(place), ranks, own, rank, ctypes.byref(config))
        self._handle = place.value
        try:
            self._settle(name, result)
        except BaseException:
            self.abort()
            raise

    def all_reduce(self, source: int, target: int, count: int, stream: int) -> None:
        """The sum of `count` float32 numbers of all ranks goes into a stream. Both are addresses on
        the GPU. Raises EngineDead if the communicator was aborted, DeviceFailed."""
        name = "ncclAllReduce"
        with self._calls:
            kinds = _FLOAT32, _SUM
            given = source, target, count, *kinds, self._alive(), stream
            result = self._nccl.result(name, *given)
        self._settle(name, result)

    def check(self) -> None:
        """Raises what went wrong beside the calls, EngineDead if it was aborted. Nothing is asked
        while the thread that adds is in a call, which may hang."""
        if self._calls.acquire(blocking=False):
            try:
                result = self._asked()
            finally:
                self._calls.release()
            self._nccl.check(_ASYNC, result)

    def abort(self) -> None:
        """Whatever waits for another rank ends, on the GPU too. This waits for no rank, so it is
        the way to end where all is well, too. Raises nothing."""
        is_free = self._calls.acquire(timeout=CALL_S)  # else a call hangs, which this shall end
        try:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._nccl._library.ncclCommAbort(handle)
        finally:
            if is_free:
                self._calls.release()

    def _settle(self, name: str, result: int) -> None:
        """Return when a call has ended. result: what it has said at first."""
        end = time.monotonic() + STALLED_S
        while result == _IN_PROGRESS:
            self._look()
            if time.monotonic() > end:
                raise EngineDead(f"{name} has waited for other ranks for {STALLED_S:.0f} s")
            result = self._state()
            if result == _IN_PROGRESS:
                time.sleep(POLL_S)
        self._nccl.check(name, result)

    def _state(self) -> int:
        """The result of the last call, as far as it is known."""
        with self._calls:
            return self._asked()

    def _asked(self) -> int:
        found = _int()
        self._nccl.result(_ASYNC, self._alive(), ctypes.byref(found))
        return found.value

    def _alive(self) -> int:
        if self._handle is None:
            raise EngineDead("the sums over GPUs were given up")
        return self._handle


@cache
def load_nccl() -> Nccl:
    """Raises UnusableDevice if the package is missing. A network interface that the user has named
    in the environment stays."""
    os.environ.setdefault(INTERFACE_VARIABLE, OWN_INTERFACE)
    return Nccl(load_library(NCCL, "libnccl.so.2"))
