"""A GPU at run time: its memory, and the code of a library linked into this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.backends.cuda.driver import usable_gpu
from mlc_llm.backends.cuda.fetched import Fetcher, GpuValues
from mlc_llm.backends.cuda.graphs import CudaGraphs
from mlc_llm.backends.cuda.linking import CudaLibrary, check_fits
from mlc_llm.backends.cuda.nccl import load_nccl
from mlc_llm.backends.cuda.rank_sums import NcclSums
from mlc_llm.backends.cuda.runtime import ON_DEVICE, TO_HOST, load_cuda
from mlc_llm.backends.cuda.staging import PinnedStaging, Ring, current_stream
from mlc_llm.backends.cuda.tensors import gpu_tensor, size_of
from mlc_llm.backends.ranks.meeting import Meeting
from mlc_llm.support.host_array import HostArray

if TYPE_CHECKING:
    from mlc_llm.backends.device import Scratch

CHUNK = 8 << 20
"""Bytes of an array that are copied at once."""


class CudaDevice:
    """See `backends.device.Device`: the first GPU that the driver shows; CUDA_VISIBLE_DEVICES says
    which one that is. Calls raise MemoryError if its memory is full, DeviceFailed if CUDA fails."""

    shows_memory = False

    def __init__(self) -> None:
        """Raises UnusableDevice with what is missing."""
        self._gpu, self._runtime = usable_gpu(), load_cuda()
        self._fetcher = Fetcher(self._runtime)
        self._uploads: Ring | None = None

    def link(
        self, folder: Path, files: Sequence[str], requires: Sequence[str], ranks: int = 1
    ) -> CudaLibrary:
        check_fits(folder, requires, self._gpu)
        bytecode, launchers, kernels = (folder / name for name in files)
        return CudaLibrary(bytecode, launchers, kernels)

    def zeros(self, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
        tensor = gpu_tensor(self._runtime, shape, dtype)
        if size := size_of(tensor):
            self._runtime.fill(tensor.data_ptr(), size, current_stream())
        return tensor

    def scratch(self, size: int) -> Scratch:
        raise AssertionError("libraries for GPUs take no workspaces")

    def upload(self, array: npt.NDArray[Any] | HostArray) -> tvm_ffi.Tensor:
        """A tensor of an array's values, copied in chunks: the array may be a mapped file."""
        if isinstance(array, HostArray):
            array = array.numpy()
        tensor = gpu_tensor(self._runtime, array.shape, str(array.dtype))
        self._send(np.ascontiguousarray(array), tensor.data_ptr())
        return tensor

    def _send(self, array: npt.NDArray[Any], to: int) -> None:
        """Copies an array that lies in one piece to an address of the GPU."""
        source = array.reshape(-1).view(np.uint8)
        if self._uploads is None:
            self._uploads = Ring(self._runtime, CHUNK)
        for start in range(0, len(source), self._uploads.size):
            chunk = source[start : start + self._uploads.size]
            _, half = self._uploads.half()
            np.frombuffer(half.view, np.uint8, len(chunk))[:] = chunk
            half.send(to + start, len(chunk))

    def write(self, tensor: tvm_ffi.Tensor, index: int, values: npt.ArrayLike) -> None:
        shape = tuple(tensor.shape)[1:]
        row = np.broadcast_to(np.asarray(values, str(tensor.dtype)), shape)
        self._send(np.ascontiguousarray(row), tensor.data_ptr() + index * row.nbytes)

    def staging(self) -> PinnedStaging:
        return PinnedStaging(self._runtime)

    def repeats(self) -> CudaGraphs:
        return CudaGraphs(self._runtime)

    def fetch(self, tensors: Sequence[tvm_ffi.Tensor]) -> GpuValues:
        return self._fetcher.fetch(tensors)

    def rank_key(self) -> bytes:
        return load_nccl().new_id()

    def rank_sums(self, meeting: Meeting, key: bytes) -> NcclSums:
        return NcclSums(self._runtime, meeting, key)

    def move(
        self, source: tvm_ffi.Tensor, first: int, target: tvm_ffi.Tensor, at: int, count: int
    ) -> None:
        size = tvm_ffi.dtype(str(source.dtype)).itemsize
        to, start = target.data_ptr() + size * at, source.data_ptr() + size * first
        self._runtime.copy(to, start, size * count, ON_DEVICE, current_stream())

    def read(self, tensor: tvm_ffi.Tensor) -> npt.NDArray[Any]:
        """A copy of a tensor's values. It cannot be written: the tensor would not change."""
        values = np.empty(tuple(tensor.shape), str(tensor.dtype))
        stream = current_stream()
        if values.nbytes:
            start = values.ctypes.data
            self._runtime.copy(start, tensor.data_ptr(), values.nbytes, TO_HOST, stream)
        self._runtime.wait(stream)
        values.flags.writeable = False
        return values
