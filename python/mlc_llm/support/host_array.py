"""Numbers in memory of this process, for compiled code and for Python, without NumPy: to import
that takes a sixth of the time in which a command gives its first token.

Compiled code takes them as DLPack says (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import struct
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

_TYPES = {
    f"{name}{bits}": (code, bits)
    for code, name in enumerate(("int", "uint", "float"))
    for bits in (8, 16, 32, 64)
}
"""DLPack's number of each type, and the bits of one."""
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
        ndim, (code, bits) = len(self.shape), _TYPES[self.dtype]
        strides = [prod(self.shape[i + 1 :]) for i in range(ndim)]
        head = bytearray(_HEAD.size + 16 * ndim)
        start = _Bytes.from_buffer(head)
        sizes = (address := ctypes.addressof(start)) + _HEAD.size
        _HEAD.pack_into(
            *(head, 0, self.address, *_HOST, ndim, code, bits, 1),
            *(sizes, sizes + 8 * ndim, 0, 0, _RETURN),
        )
        struct.pack_into(f"={2 * ndim}q", head, _HEAD.size, *self.shape, *strides)
        _lent[address] = head, start, self
        return _capsule(address, b"dltensor", None)


def host_array(dtype: str, numbers: Iterable[float]) -> HostArray:
    """A list of numbers, of a type that Python reads by itself."""
    given = array(_FORMATS[dtype], numbers)
    found = HostArray(own_memory(len(given) * given.itemsize), dtype, (len(given),))
    found.numbers()[:] = given
    return found


def item_bytes(dtype: str) -> int:
    """Bytes of a number. Raises ValueError for a name that is none of a type."""
    if dtype not in _TYPES:
        raise ValueError(f"{dtype!r} is no type of numbers")
    return _TYPES[dtype][1] // 8


def read_int32s(address: int, count: int) -> list[int]:
    """Numbers that compiled code has written."""
    return (ctypes.c_int32 * count).from_address(address)[:]


_Bytes = ctypes.c_char * 0
_HEAD = struct.Struct("=QiiiBBHQQQQQ")
"""DLPack's DLManagedTensor: address, device, dimensions, type, addresses of shape and strides, two
zeros, and what is called with its own address when the tensor is gone. Shape and strides follow."""
_lent: dict[int, tuple[bytearray, object, HostArray]] = {}
"""By address: what is read of arrays that somebody has as tensors."""
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


def _returned(address: int) -> None:
    _lent.pop(address, None)


_give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_returned)
_RETURN = ctypes.cast(_give_back, ctypes.c_void_p).value


@atexit.register
def _keep_all() -> None:
    """What is lent until the program ends is never given back: Python may be gone by then."""
    for head, _, _ in list(_lent.values()):
        struct.pack_into("=Q", head, _HEAD.size - 8, 0)
