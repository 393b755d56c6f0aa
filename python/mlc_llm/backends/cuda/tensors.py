"""Tensors in memory of the GPU that we allocate and give back ourselves.

TVM's own tensors end the process if the driver refuses to take their memory back, which it does
once a kernel has failed. The layout of the C structures is DLPack's, version 0.8.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import tvm_ffi

from mlc_llm.backends.cuda.runtime import Runtime

CUDA = 2
"""kDLCUDA."""


class _Tensor(ctypes.Structure):
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


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Owned:
    """Memory of the GPU as DLPack describes it. It lives until whoever took it calls `_let_go`."""

    def __init__(
        self, start: int, shape: Sequence[int], dtype: Any, give_back: Callable[[], object]
    ) -> None:
        """give_back: what is called then."""
        self.give_back = give_back
        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        kind = (dtype.type_code, dtype.bits, dtype.lanes)
        tensor = _Tensor(start, CUDA, 0, len(shape), *kind, self._shape, None, 0)
        self.managed = _Managed(tensor, None, ctypes.cast(_let_go, ctypes.c_void_p))

    def __dlpack__(self, **_: object) -> Any:
        address = ctypes.addressof(self.managed)
        _alive[address] = self
        return _new_capsule(address, b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0


_alive: dict[int, _Owned] = {}
"""By the address of what DLPack hands around."""


def _free(
    address: int,
    alive: dict[int, _Owned] = _alive,
    is_ending: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """Its arguments are what it needs: at the end of a program modules are empty, and the driver
    takes all memory back."""
    if not is_ending():
        alive.pop(address).give_back()


_let_go = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_free)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_let_go))  # tensors may outlive this module
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def gpu_tensor(runtime: Runtime, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """A tensor on the GPU with any values. Raises MemoryError, DeviceFailed."""
    kind = tvm_ffi.dtype(dtype)
    start = runtime.allocate(prod(shape) * kind.itemsize)
    return tvm_ffi.from_dlpack(_Owned(start, shape, kind, partial(runtime.free, start)))


def part_of(tensor: tvm_ffi.Tensor, start: int, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """The memory of a tensor from a byte on as another one, which keeps the first alive. (What TVM
    makes with `TVMTensorCreateView` has a distance, which compiled code does not take.)"""
    kept = [tensor]
    owned = _Owned(tensor.data_ptr() + start, shape, tvm_ffi.dtype(dtype), kept.clear)
    return tvm_ffi.from_dlpack(owned)


def size_of(tensor: tvm_ffi.Tensor) -> int:
    """Bytes."""
    item: int = tvm_ffi.dtype(str(tensor.dtype)).itemsize
    return int(prod(tensor.shape)) * item
