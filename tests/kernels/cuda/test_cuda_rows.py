"""Rows of a matrix, and numbers of rows, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.kernels.cuda.rows import chosen_logits, take_rows

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("k", [4, 132, 2112])
def test_rows_are_taken(emulate: Emulator, k: int) -> None:
    x = np.random.default_rng(k).normal(size=(5, k)).astype(np.float32)
    rows = np.array([4, 0, 4], np.int32)
    *_, y = emulate(take_rows(k), x, rows, np.zeros((3, k), np.float32))
    assert y.tobytes() == x[rows].tobytes()


def test_a_number_of_each_row(emulate: Emulator) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(192, 7)).astype(np.float32)
    rows = random.integers(0, 9, 192).astype(np.int32)
    token = np.array([0, 6, 7, -1, 3, 2, 1, 5, 100], np.int32)
    *_, y = emulate(chosen_logits(7), x, rows, token, np.full(192, 9, np.float32))
    wanted = token[rows]
    known = (wanted >= 0) & (wanted < 7)
    expected = np.where(known, x[np.arange(192), np.where(known, wanted, 0)], np.float32(0))
    assert y.tobytes() == expected.tobytes()


def test_machine_code() -> None:
    check_code(take_rows(2048), wanted={"LDG", "STG"})
    check_code(chosen_logits(49152), wanted={"LDG", "STG"})
