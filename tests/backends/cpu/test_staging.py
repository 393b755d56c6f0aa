"""Numbers that are copied side by side into one block."""

from __future__ import annotations

from array import array

import numpy as np

from mlc_llm.backends.cpu.staging import ALIGNMENT, HostStaging
from mlc_llm.runtime.tables import table


def test_values_shapes_and_alignment() -> None:
    staging = HostStaging()
    for size in (0, 1, 1, 3, 17, 500_000, 2):  # grows when it has to
        arrays = [
            np.arange(size, dtype=np.int32),
            np.random.default_rng(size).random((2, size), np.float32).T[:, ::-1],
            np.full((3, size), 7, np.int32),
        ][: None if size else 2]
        tensors = [np.from_dlpack(one) for one in staging.tensors(*map(table, arrays))]
        for values, tensor in zip(arrays, tensors, strict=True):
            assert tensor.dtype == values.dtype
            assert tensor.shape == values.shape
            assert np.array_equal(tensor, values)
            assert tensor.ctypes.data % ALIGNMENT == 0


def test_tensors_stay_while_their_shapes_do() -> None:
    staging = HostStaging()
    first = staging.tensors((array("i", [1, 2, 3]), 3), (array("f", [0.5]), 0))
    again = staging.tensors((array("i", [4, 5, 6]), 3), (array("f", [0.25]), 0))
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert np.from_dlpack(again[0]).tolist() == [[4, 5, 6]]
    for other in ((array("i", [7, 8, 9]), 0), (array("f", [7, 8, 9]), 3)):
        (tensor,) = staging.tensors(other)
        assert np.from_dlpack(tensor).ravel().tolist() == [7, 8, 9]


def test_a_tensor_outlives_the_block() -> None:
    staging = HostStaging()
    (kept,) = staging.tensors((array("i", [5, 6]), 0))
    staging.tensors((array("f", bytes(4 << 20)), 0))
    del staging
    assert np.from_dlpack(kept).tolist() == [5, 6]
