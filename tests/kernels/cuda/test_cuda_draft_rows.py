"""What a draft head needs beside the operations of a layer, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.kernels.cuda.draft_rows import at_most_one, put_columns, spread

pytestmark = pytest.mark.cuda


def test_columns_are_put(emulate: Emulator) -> None:
    x = np.random.default_rng(0).normal(size=(3, 600)).astype(np.float32)
    y = np.full((3, 700), 7, np.float32)
    *_, found = emulate(put_columns(600, 40, 700), x, y.copy())
    y[:, 40:640] = x
    assert found.tobytes() == y.tobytes()


def test_numbers_of_at_most_one(emulate: Emulator) -> None:
    x = np.array([0, 5, 1, 300] * 40, np.int32)
    assert emulate(at_most_one(), x, np.zeros_like(x))[-1].tolist() == [0, 1, 1, 1] * 40


def test_columns_are_spread(emulate: Emulator) -> None:
    x = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    row = np.array([-1, 4, 0, 0, -3, 2], np.float32)
    *_, found = emulate(spread(5, 6, 9, -3e38), x, row, np.full((2, 9), 7, np.float32))
    wanted = np.zeros((2, 9), np.float32)
    wanted[:, :6] = np.where(row < 0, np.float32(-3e38), x[:, row.astype(int)])
    assert found.tobytes() == wanted.tobytes()


def test_machine_code() -> None:
    for kernel in (put_columns(4096, 4096, 8192), at_most_one(), spread(32000, 128256, 128256, 0)):
        check_code(kernel, {"LDG", "STG"})
