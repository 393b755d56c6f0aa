"""Products with packed matrices on a GPU: their CUDA source on the emulator, and machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from plane_tools import as_planes, numbers_of
from tile_tools import KINDS, Matrix, random_matrix

from mlc_llm.backends.cuda.formats import format_of_kind
from mlc_llm.kernels.cuda.matmul import ROWS, largest_divisor, matmul

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]


def test_the_tests_of_planes_make_what_kernels_make() -> None:
    x = np.random.default_rng(3).normal(size=(5, 96)).astype(np.float32)
    assert np.allclose(numbers_of(as_planes(x), 96), x, rtol=2.0**-22, atol=1e-9)


def multiplied(emulate: Emulator, matrix: Matrix, x: Array, y: Array | None = None) -> Array:
    """x W^T, added to y if that is given."""
    n, k = matrix.values.shape
    kernel = matmul(n, k, matrix.format, accumulate=y is not None)
    out = np.zeros((len(x), n), np.float32) if y is None else y
    return emulate(kernel, as_planes(x), matrix.packed, out)[-1]


def check(found: Array, matrix: Matrix, x: Array, y: Array | float = 0.0) -> None:
    expected = y + x.astype(np.float64) @ matrix.values.T
    # The largest of a row counts, because numbers beside it are kept to 2^-38 of it.
    size = np.abs(x) @ np.abs(matrix.values.T) + np.abs(y)
    assert (np.abs(found - expected) <= 2e-6 * size).all()


@pytest.mark.parametrize("rows", [1, 2, 8, 9, ROWS + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_number(emulate: Emulator, kind: str, rows: int) -> None:
    matrix = random_matrix(kind, 64, 96)
    x = np.random.default_rng(rows).normal(size=(rows, 96)).astype(np.float32)
    check(multiplied(emulate, matrix, x), matrix, x)


@pytest.mark.parametrize("k", [32, 288, 512, 2048])
def test_parts_of_any_size(emulate: Emulator, k: int) -> None:
    matrix = random_matrix("Q4_1", 32, k)
    x = np.random.default_rng(k).normal(size=(3, k)).astype(np.float32)
    check(multiplied(emulate, matrix, x), matrix, x)


def test_it_adds_to_what_is_there(emulate: Emulator) -> None:
    matrix, random = random_matrix("Q4_0", 32, 64), np.random.default_rng(5)
    x, y = (random.normal(size=(9, width)).astype(np.float32) for width in (64, 32))
    check(multiplied(emulate, matrix, x, y.copy()), matrix, x, y)


def test_rows_behind_the_matrix_are_zero(emulate: Emulator) -> None:
    matrix = random_matrix("Q4_1", 40, 64)
    x = np.ones((2, 64), np.float32)
    assert not multiplied(emulate, matrix, x)[:, 40:].any()


def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(emulate: Emulator) -> None:
    matrix, random = random_matrix("Q4_1", 32, 512), np.random.default_rng(6)
    x = random.normal(size=(ROWS + 4, 512)).astype(np.float32)
    x *= np.exp(random.normal(size=(len(x), 1))).astype(np.float32)
    together = multiplied(emulate, matrix, x)
    for row in (0, 7, 8, ROWS - 1, ROWS + 3):
        alone = multiplied(emulate, matrix, x[row : row + 1])
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize(
    ("number", "most", "found"), [(18, 8, 6), (64, 8, 8), (7, 4, 1), (1, 8, 1)]
)
def test_the_split_is_even(number: int, most: int, found: int) -> None:
    assert largest_divisor(number, most) == found


@pytest.mark.parametrize(("n", "k"), [(1536, 576), (4096, 14336)])
@pytest.mark.parametrize("kind", KINDS)
def test_machine_code(kind: str, n: int, k: int) -> None:
    kernel = matmul(n, k, format_of_kind(kind), accumulate=True)
    check_code(kernel, wanted={"HMMA", "LDG", "STS", "LDS", "BAR"})
