"""Arrays without NumPy: what NumPy and compiled code see of them, and how long they are kept."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import tvm_ffi

from mlc_llm.support import host_array as module
from mlc_llm.support.host_array import HostArray, host_array, item_bytes, read_int32s
from mlc_llm.support.huge_memory import own_memory


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8", "uint8", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 4), (2, 0)])
def test_numpy_and_a_tensor_see_the_same_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    array = HostArray(own_memory(4096), dtype, shape, 64)
    array.numpy()[...] = np.arange(array.numpy().size).reshape(shape)
    tensor = tvm_ffi.from_dlpack(array)
    assert (tensor.shape, str(tensor.dtype)) == (shape, dtype)
    assert array.nbytes == array.numpy().nbytes == len(array.bytes())
    if array.nbytes:
        assert tensor.data_ptr() == array.address == array.numpy().ctypes.data
    seen = np.from_dlpack(tensor)
    assert np.array_equal(seen, array.numpy()) and seen.shape == shape
    assert tvm_ffi.from_dlpack(array.numpy()).strides == tensor.strides or not array.nbytes


@pytest.mark.parametrize(
    ("shape", "offset"), [((1025,), 0), ((1,), 4096), ((-1,), 0), ((2, -1), 0), ((1,), -4)]
)
def test_it_lies_in_the_memory(shape: tuple[int, ...], offset: int) -> None:
    with pytest.raises(ValueError, match=f"{offset} on, of 4096 bytes"):
        HostArray(own_memory(4096), "float32", shape, offset)


@pytest.mark.parametrize("name", ["object", "float", "int7", "float99", "bfloat16", ""])
def test_names_of_no_types(name: str) -> None:
    with pytest.raises(ValueError, match="no type of numbers"):
        item_bytes(name)


def test_python_reads_and_writes_numbers() -> None:
    array = host_array("float32", (1, 2.5, -3))
    array.numbers()[1] = 0.5
    assert array.numbers().tolist() == [1, 0.5, -3]
    assert array.seen_as("float32", (2,), 4).numbers().tolist() == [0.5, -3]
    copy = array.copy()
    array.numbers()[0] = 7
    assert copy.numbers().tolist() == [1, 0.5, -3]
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert np.array_equal(HostArray.of(values).numpy(), values)
    numbers = host_array("int32", (5, -(2**31), 2**31 - 1))
    assert read_int32s(numbers.address, 3) == [5, -(2**31), 2**31 - 1]


def test_memory_is_kept_as_long_as_a_tensor() -> None:
    gc.collect()
    before = len(module._lent)
    array = host_array("int32", (1, 2, 3))
    tensors = [tvm_ffi.from_dlpack(array) for _ in range(3)]
    held = tvm_ffi.Array(tensors)
    del array, tensors
    gc.collect()
    assert len(module._lent) == before + 3
    assert np.from_dlpack(held[2]).tolist() == [1, 2, 3]
    del held
    gc.collect()
    assert len(module._lent) == before


KEPT_TO_THE_END = """
import tvm_ffi
from mlc_llm.support.host_array import host_array
keep = tvm_ffi.from_dlpack(host_array("int32", (1, 2)))
tvm_ffi.register_global_func("test.keeps_a_tensor", lambda: keep)
"""


def test_a_tensor_may_outlive_python() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT_TO_THE_END], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
