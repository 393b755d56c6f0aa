"""Numbers in memory of this process, for compiled code and for Python, without NumPy: to import
that takes a fourth of the time in which a command gives its first token.

Compiled code takes them as DLPack says (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
from array import array
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from mlc_llm.support.huge_memory import own_memory

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

_CODES = {"int": 0, "uint": 1, "float": 2}
"""DLPack's numbers of types."""
_FORMATS: dict[str, Literal["i", "f"]] = {"int32": "i", "float32": "f"}
"""Types that Python reads by itself, and its names for them."""
_HOST = (1, 0)
"""DLPack's number of this processor, and which one."""


class HostArray:
    """An array in one piece. It shares `memory` with all others made over it, and keeps it."""

    __slots__ = ("_start", "dtype", "memory", "nbytes", "offset", "shape")

    def __init__(
        self, memory: mmap.mmap, dtype: str, shape: tuple[int, ...], offset: int = 0
    ) -> None:
        """offset: bytes before it. Raises ValueError unless it lies in the memory."""
        self.memory, self.dtype, self.shape, self.offset = memory, dtype, shape, offset
        self.nbytes = prod(shape) * item_bytes(dtype)
        if min((offset, *shape)) < 0 or offset + self.nbytes > len(memory):
            raise ValueError(f"{dtype} {shape} from byte {offset} on, of {len(memory)} bytes")
        self._start = _Bytes.from_buffer(memory, offset)

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> HostArray:
        """A copy."""
        found = cls(own_memory(values.nbytes), str(values.dtype), values.shape)
        found.numpy()[...] = values
        return found

    @property
    def address(self) -> int:
        return ctypes.addressof(self._start)

    def bytes(self) -> memoryview:
        """uint8 [nbytes]."""
        return memoryview(self.memory)[self.offset : self.offset + self.nbytes]

    def numbers(self) -> memoryview[Any]:
        """All of them, one behind the other; of int32 and float32 only."""
        found: memoryview[Any] = self.bytes().cast(_FORMATS[self.dtype])
        return found

    def seen_as(self, dtype: str, shape: tuple[int, ...], start: int = 0) -> HostArray:
        """Its bytes from `start` on as another array."""
        return HostArray(self.memory, dtype, shape, self.offset + start)

    def copy(self) -> HostArray:
        """In memory of its own."""
        memory = own_memory(self.nbytes)
        memory[: self.nbytes] = self.bytes()
        return HostArray(memory, self.dtype, self.shape)

    def numpy(self) -> npt.NDArray[Any]:
        """The same numbers for NumPy."""
        flat: npt.NDArray[np.generic] = np.frombuffer(
            self.memory, self.dtype, prod(self.shape), self.offset
        )
        return flat.reshape(self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST

    def __dlpack__(self, **_: object) -> object:
        """What a tensor is made of. While there is one, the memory is kept."""
        lent = _Lent(self)
        _lent[lent.address] = lent
        return _capsule(lent.address, b"dltensor", None)


def host_array(dtype: str, numbers: Iterable[float]) -> HostArray:
    """A list of numbers, of a type that Python reads by itself."""
    given = array(_FORMATS[dtype], numbers)
    found = HostArray(own_memory(len(given) * given.itemsize), dtype, (len(given),))
    found.numbers()[:] = given
    return found


def item_bytes(dtype: str) -> int:
    """Bytes of a number. Raises ValueError for a name that is none of a type."""
    return _kind_of(dtype)[1] // 8


def read_int32s(address: int, count: int) -> list[int]:
    """Numbers that compiled code has written."""
    return (ctypes.c_int32 * count).from_address(address)[:]


def _kind_of(dtype: str) -> tuple[int, int]:
    """DLPack's number, and bits."""
    name = dtype.rstrip("0123456789")
    bits = dtype.removeprefix(name)
    if name not in _CODES or bits not in ("8", "16", "32", "64"):
        raise ValueError(f"{dtype!r} is no type of numbers")
    return _CODES[name], int(bits)


_Bytes = ctypes.c_char * 0
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (
        ("tensor", _DLTensor),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


class _Lent:
    """An array that somebody has as a tensor, and what he reads of it."""

    def __init__(self, array: HostArray) -> None:
        self._array, ndim = array, len(array.shape)
        strides = [prod(array.shape[i + 1 :]) for i in range(ndim)]
        sizes = ctypes.c_int64 * max(ndim, 1)
        self._sizes = sizes(*array.shape), sizes(*strides)
        self._managed = _DLManagedTensor(
            _DLTensor(
                array.address, *_HOST, ndim, *_kind_of(array.dtype), 1,
                *(ctypes.cast(one, ctypes.POINTER(ctypes.c_int64)) for one in self._sizes), 0,
            ),
            None,
            _give_back,
        )  # fmt: skip
        self.address = ctypes.addressof(self._managed)

    def keep(self) -> None:
        """Nobody is told when the tensor is gone."""
        self._managed.deleter = _Deleter()


_lent: dict[int, _Lent] = {}
"""By the addresses of what is read."""
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


def _returned(address: int) -> None:
    _lent.pop(address, None)


_give_back = _Deleter(_returned)


@atexit.register
def _keep_all() -> None:
    """What is lent until the program ends is never given back: Python may be gone by then."""
    for one in list(_lent.values()):
        one.keep()
