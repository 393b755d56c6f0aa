"""Arrays that are copied side by side into one block."""

from __future__ import annotations

import numpy as np

from mlc_llm.runtime.staging import ALIGNMENT, Staging


def test_values_shapes_and_alignment() -> None:
    staging = Staging()
    for size in (0, 1, 3, 17, 500_000, 2):  # grows when it has to
        arrays = [
            np.arange(size, dtype=np.int32),
            np.arange(2 * size, dtype=np.float32).reshape(-1, 2)[:, ::-1],
            np.full((3, size), 7, np.int32),
        ]
        tensors = [np.from_dlpack(tensor) for tensor in staging.tensors(*arrays)]
        for array, tensor in zip(arrays, tensors, strict=True):
            assert tensor.dtype == array.dtype
            assert np.array_equal(tensor, array)
            assert tensor.ctypes.data % ALIGNMENT == 0


def test_a_tensor_outlives_the_block() -> None:
    staging = Staging()
    (kept,) = staging.tensors(np.array([5, 6], np.int32))
    staging.tensors(np.zeros(1 << 20, np.float32))
    del staging
    assert np.from_dlpack(kept).tolist() == [5, 6]
