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
from mlc_llm.kernels.cuda.matmul import FEW, ROWS, largest_divisor, matmul
from mlc_llm.kernels.cuda.matmul_hopper import can_multiply, matmul_hopper

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


def width_of(kind: str) -> int:
    """Columns of a small matrix, of several parts."""
    return 512 if format_of_kind(kind).has_units else 96


@pytest.mark.parametrize("rows", [1, 9, ROWS + 1, FEW + 5])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_number(emulate: Emulator, kind: str, rows: int) -> None:
    matrix = random_matrix(kind, 64, width_of(kind))
    x = np.random.default_rng(rows).normal(size=(rows, width_of(kind))).astype(np.float32)
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


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F32"])
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(emulate: Emulator, kind: str) -> None:
    matrix, random = random_matrix(kind, 160, 512), np.random.default_rng(6)
    x = random.normal(size=(FEW + 9, 512)).astype(np.float32)
    x *= np.exp(random.normal(size=(len(x), 1))).astype(np.float32)
    many, few = multiplied(emulate, matrix, x), multiplied(emulate, matrix, x[: ROWS + 4])
    assert few.tobytes() == many[: ROWS + 4].tobytes()
    for row in (0, 7, 8, ROWS + 3, FEW + 8):
        alone = multiplied(emulate, matrix, x[row : row + 1])
        assert alone.tobytes() == many[row].tobytes()


@pytest.mark.parametrize(("kind", "rows"), [("Q4_0", 20), ("Q3_K", 20), ("Q4_0", FEW + 9)])
def test_fast_rows_are_rounded_and_change_no_other(emulate: Emulator, kind: str, rows: int) -> None:
    """As if their low plane were 0."""
    matrix, fast = random_matrix(kind, 32, 256), 13
    x = np.random.default_rng(8).normal(size=(rows, 256)).astype(np.float32)
    planes, out = as_planes(x), np.zeros((rows, 32), np.float32)
    kernel = matmul(32, 256, matrix.format, fast="rounded")
    found = emulate(kernel, planes, matrix.packed, np.array([fast], np.int32), out)[-1]
    planes[:fast, 128:256] = 0
    wanted = emulate(matmul(32, 256, matrix.format), planes, matrix.packed, out)[-1]
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("rows", [3, FEW + 9])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F32"])
def test_one_plane_of_all_rows(emulate: Emulator, kind: str, rows: int) -> None:
    """As if their low plane were 0, and a row alone has the bits that it has among many."""
    matrix = random_matrix(kind, 32, 256)
    x = np.random.default_rng(8).normal(size=(rows, 256)).astype(np.float32)
    planes, out = as_planes(x), np.zeros((rows, 32), np.float32)
    kernel = matmul(32, 256, matrix.format, planes=1)
    found = emulate(kernel, planes, matrix.packed, out)[-1]
    (alone,) = emulate(kernel, planes[-1:], matrix.packed, out[-1:])[-1]
    assert alone.tobytes() == found[-1].tobytes()
    planes[:, 128:256] = 0
    wanted = emulate(matmul(32, 256, matrix.format), planes, matrix.packed, out)[-1]
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", ["Q4_0", "Q2_K"])
def test_many_rows_add_to_what_is_there(emulate: Emulator, kind: str) -> None:
    matrix, random = random_matrix(kind, 32, 256), np.random.default_rng(5)
    x, y = (random.normal(size=(FEW + 1, width)).astype(np.float32) for width in (256, 32))
    check(multiplied(emulate, matrix, x, y.copy()), matrix, x, y)


@pytest.mark.parametrize(
    ("number", "most", "found"), [(18, 8, 6), (64, 8, 8), (7, 4, 1), (1, 8, 1)]
)
def test_the_split_is_even(number: int, most: int, found: int) -> None:
    assert largest_divisor(number, most) == found


@pytest.mark.parametrize(("n", "k"), [(1536, 768), (4096, 14336)])
@pytest.mark.parametrize("kind", KINDS)
def test_machine_code(kind: str, n: int, k: int) -> None:
    for planes in (1, 2):
        kernel = matmul(n, k, format_of_kind(kind), accumulate=True, planes=planes)
        check_code(kernel, wanted={"HMMA", "LDG", "LDGSTS", "STS", "LDS", "BAR"})


@pytest.mark.parametrize("rows", [FEW - 9, FEW + 9])
def test_rows_that_another_kernel_computes_are_left_alone(emulate: Emulator, rows: int) -> None:
    matrix, skipped = random_matrix("Q4_1", 32, 256), 70
    x, y = (np.random.default_rng(8).normal(size=(rows, width)) for width in (256, 32))
    given = as_planes(x.astype(np.float32)), matrix.packed
    kernels = [
        matmul(32, 256, matrix.format, accumulate=True, fast=one) for one in (None, "skipped")
    ]
    whole = emulate(kernels[0], *given, y.astype(np.float32))[-1]
    part = emulate(kernels[1], *given, np.array([skipped], np.int32), y.astype(np.float32))[-1]
    assert part[:skipped].tobytes() == y.astype(np.float32)[:skipped].tobytes()
    assert part[skipped:].tobytes() == whole[skipped:].tobytes()


ONE_PLANE = [one for one in KINDS if can_multiply(format_of_kind(one))]


@pytest.mark.parametrize(
    ("kind", "planes", "rows"),
    [("Q4_0", 2, 70), ("BF16", 1, 3), *((kind, 1, 65) for kind in ONE_PLANE if kind != "BF16")],
)
def test_products_by_wgmma(emulate: Emulator, kind: str, planes: int, rows: int) -> None:
    """A matrix whose last block has one tile alone, and a row behind the fast ones."""
    matrix, k = random_matrix(kind, 160, width_of(kind)), width_of(kind)
    x = np.random.default_rng(9).normal(size=(rows + 1, k)).astype(np.float32)
    given = as_planes(x)
    if planes == 1:
        given[:, k // 2 : k] = 0
        x = numbers_of(given, k).astype(np.float32)
        given = as_planes(x)
        given[:, k // 2 : k] = 0x3C003C00  # twice 1, which nobody may read
    kernel = matmul_hopper(160, k, matrix.format, planes=planes, has_fast=True)
    out = np.full((rows + 1, 160), 7, np.float32)
    found = emulate(kernel, given, matrix.packed, np.array([rows], np.int32), out)[-1]
    check(found[:rows], matrix, x[:rows])
    assert (found[rows] == 7).all()


def test_wgmma_adds_to_what_is_there_and_a_row_depends_on_no_other(emulate: Emulator) -> None:
    matrix, random = random_matrix("Q4_K", 128, 512), np.random.default_rng(5)
    x, y = (random.normal(size=(67, width)).astype(np.float32) for width in (512, 128))
    plain, adding = (
        matmul_hopper(128, 512, matrix.format, planes=1, accumulate=one) for one in (False, True)
    )
    out, given = np.zeros_like(y), as_planes(x)
    product = emulate(plain, given, matrix.packed, out)[-1]
    assert emulate(adding, given, matrix.packed, y)[-1].tobytes() == (product + y).tobytes()
    for row in (0, 66):
        (alone,) = emulate(plain, given[row : row + 1], matrix.packed, out[:1])[-1]
        assert alone.tobytes() == product[row].tobytes()


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("kind", ONE_PLANE)
def test_machine_code_with_wgmma(kind: str, planes: int) -> None:
    kernel = matmul_hopper(
        4096, 4096, format_of_kind(kind), planes=planes, accumulate=True, has_fast=True
    )
    check_code(kernel, {"HGMMA", "LDG", "STS", "BAR"}, ["sm_90a"])
