"""What a few rows need behind the layers, on a GPU."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.kernels.cuda.plain_rows import (
    activate,
    first_columns,
    float_product,
    joined_squares,
    zeros,
)

pytestmark = pytest.mark.cuda


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": lambda x: x * np.vectorize(lambda v: 1 + math.erf(v / math.sqrt(2)))(x) / 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(emulate: Emulator, name: str) -> None:
    x = 3 * normal(3, 544)
    (found,) = emulate(activate(544, name), x.copy())
    assert np.allclose(found, FUNCTIONS[name](x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [40, 1100])
def test_zeros_and_first_columns(emulate: Emulator, width: int) -> None:
    (found,) = emulate(zeros(width), np.ones(width, np.float32))
    assert not found.any()
    x = normal(3, width)
    *_, found = emulate(first_columns(width, width - 9), x, np.zeros((3, width - 9), np.float32))
    assert found.tobytes() == x[:, :-9].tobytes()


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_product_with_few_rows(emulate: Emulator, rows: int) -> None:
    x, weight, bias = normal(5, 100), normal(rows, 100), normal(rows)
    *_, found = emulate(float_product(100, rows), x, weight, bias, np.zeros((5, rows), np.float32))
    wanted = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("join", ["mean", "beside"])
@pytest.mark.parametrize(("side", "size"), [(2, 3), (3, 1)])
def test_squares_of_patches(
    emulate: Emulator, side: int, size: int, join: Literal["mean", "beside"]
) -> None:
    across, width = side * size, 72
    x = normal(across, across, width)
    wanted = np.zeros((side, side, size * size, width))
    for row in range(across):
        for column in range(across):
            place = row % size * size + column % size
            wanted[row // size, column // size, place] = x[row, column]
    wanted = wanted.mean(axis=2) if join == "mean" else wanted
    wanted = wanted.reshape(side**2, -1)
    y = np.zeros(wanted.shape, np.float32)
    kernel = joined_squares(side, size, width, join)
    *_, found = emulate(kernel, x.reshape(across**2, width), y)
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_machine_code() -> None:
    for kernel in (activate(4096, "gelu"), first_columns(1024, 768), float_product(1024, 1)):
        check_code(kernel, wanted={"LDG", "STG"})
    check_code(joined_squares(16, 4, 1152, "mean"), wanted={"LDG", "STG"})
    check_code(joined_squares(8, 4, 768, "beside"), wanted={"LDG", "STG"})
    check_code(zeros(768), wanted={"STG"})
