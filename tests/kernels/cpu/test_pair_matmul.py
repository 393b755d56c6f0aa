"""Fast rows times weights of 16-bit floats, against float64 and among themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tvm
from format_floats import floats_of
from kernel_tools import Array, build

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind
from mlc_llm.backends.cpu.isa import AMX, AVX2, VNNI, VNNI_BF16
from mlc_llm.backends.cpu.ops import CpuOps
from mlc_llm.backends.cpu.packing import pack_floats
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.kernels.cpu.matmul import has_fast_rows, matmul
from mlc_llm.kernels.cpu.pair_matmul import has_pairs

needs_bf16 = pytest.mark.skipif(
    bool(missing_features(VNNI_BF16.name)), reason="no AVX-512 BF16 here"
)
MIXED, ALL = (replace(VNNI_BF16, fast=True, one_plane=one_plane) for one_plane in (False, True))
"""Kernels for `fast-prompts`, and for `fast`."""
KINDS = ("F16", "BF16")
N, K = 96, 160
COUNTS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33)


@cache
def matrix(kind: str) -> tuple[Array, WeightFormat, Array]:
    """The values, and the packed matrix."""
    fmt = format_of_kind(kind, half=True)
    values = floats_of(fmt, np.random.default_rng(3), N, K)
    return values, fmt, np.asarray(pack_floats(values, fmt).tensor)


def rows(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, K)).astype(np.float32)


def rounded(values: Array, *, outwards: bool = False) -> Array:
    """As the nearest bfloat16; of two that are as near the even one, or the one farther from 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = bits + (0x8000 if outwards else 0x7FFF + (bits >> 16 & 1))
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


def product(kind: str, x: Array, fast: int | None = None, into: Array | None = None) -> Array:
    """fast: the number of fast rows; None: by the kernels for which all rows are."""
    _, fmt, packed = matrix(kind)
    isa, has_rows = (ALL, False) if fast is None else (MIXED, True)
    kernel = build(isa, matmul, N, K, fmt, isa, accumulate=into is not None, fast=has_rows)
    y = np.full((len(x), N), np.nan, np.float32) if into is None else into.copy()
    kernel(x, packed, *([np.array([fast], np.int32)] if has_rows else []), y)
    return y


@needs_bf16
@pytest.mark.parametrize("kind", KINDS)
def test_against_float64(kind: str) -> None:
    w = rounded(matrix(kind)[0], outwards=True).T
    for count in COUNTS:
        x = rows(count)
        wanted, sums = rounded(x) @ w, np.abs(rounded(x)) @ np.abs(w)
        error = np.abs(product(kind, x) - wanted)
        assert (error <= K * 2.0**-24 * sums).all(), f"{count} rows"


@needs_bf16
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_know_each_other(kind: str) -> None:
    x = rows(COUNTS[-1])
    whole = product(kind, x)
    for count in COUNTS:
        for first in (0, len(x) - count):
            some = product(kind, x[first : first + count].copy())
            assert some.tobytes() == whole[first : first + count].tobytes(), f"{count} rows"


@needs_bf16
@pytest.mark.parametrize("kind", KINDS)
def test_fast_rows_come_first(kind: str) -> None:
    """The others are exact, wherever they begin."""
    x = rows(21)
    exact, fast = product(kind, x, fast=0), product(kind, x)
    plain = np.full_like(exact, np.nan)
    _, fmt, packed = matrix(kind)
    build(VNNI_BF16, matmul, N, K, fmt, VNNI_BF16, accumulate=False)(x, packed, plain)
    assert exact.tobytes() == plain.tobytes()
    assert (exact != fast).mean() > 0.9
    for count in (1, 5, 8, 20, 21):
        mixed = product(kind, x, fast=count)
        assert mixed[:count].tobytes() == fast[:count].tobytes()
        assert mixed[count:].tobytes() == exact[count:].tobytes()


@pytest.mark.one_of(2)
@needs_bf16
@pytest.mark.parametrize("fast", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_accumulating_adds_the_very_same_product(kind: str, fast: int | None) -> None:
    x = rows(11)
    into = np.random.default_rng(1).standard_normal((11, N)).astype(np.float32)
    assert product(kind, x, fast, into).tobytes() == (into + product(kind, x, fast)).tobytes()


@needs_bf16
def test_not_a_number_stays_in_its_row() -> None:
    x = rows(17)
    clean = product("BF16", x)
    x[3, 7], x[9, 0] = np.nan, np.inf
    found = product("BF16", x)
    assert not np.isfinite(found[[3, 9]]).any()
    others = [i for i in range(17) if i not in (3, 9)]
    assert found[others].tobytes() == clean[others].tobytes()


def test_where_there_are_such_products() -> None:
    half, single = (format_of_kind(kind, half=True) for kind in ("BF16", "F32"))
    for isa in (MIXED, ALL):
        assert has_pairs(half, isa, K) and has_fast_rows(half, isa, K) == (isa is MIXED)
        assert not has_pairs(half, isa, 588), "vectors have 32 columns"
        assert not has_pairs(single, isa, K), "32 bits are kept where a file has them"
        assert not has_fast_rows(single, isa, K)
    for isa in (AMX, AVX2, VNNI, VNNI_BF16):
        assert not has_pairs(half, isa, K)


@needs_bf16
@pytest.mark.parametrize("fast", [False, True])
def test_other_columns_are_exact(fast: bool) -> None:
    """A tower of images may have 588."""
    ops = CpuOps(MIXED if fast else ALL)
    assert not ops.matrix(32, 588, "F16", "down").is_fast
    fmt = format_of_kind("F16", half=True)
    kernels = [matmul(32, 588, fmt, isa, accumulate=False) for isa in (ALL, VNNI_BF16)]
    tvm.ir.assert_structural_equal(*kernels)


@needs_bf16
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_column_block(kind: str) -> None:
    """A loop of one task is no loop to TVM, so that all threads would do it."""
    values, fmt, _ = matrix(kind)
    packed = np.asarray(pack_floats(values[:32], fmt).tensor)
    x, into = rows(9), np.ones((9, 32), np.float32)
    kernel = build(ALL, matmul, 32, K, fmt, ALL, accumulate=True)
    for _ in range(20):
        found = into.copy()
        kernel(x, packed, found)
        assert found.tobytes() == (into + product(kind, x)[:, :32]).tobytes()


@pytest.mark.parametrize(
    ("kind", "is_fast"),
    [("Q4_0", True), ("BF16", True), ("F16", True), ("F32", False), ("float8_e4m3", False)],
)
def test_which_matrices_make_a_library_fast(kind: str, is_fast: bool) -> None:
    ops = CpuOps(ALL)
    ops.matrix(32, 64, kind, "head")
    assert ops.is_fast == is_fast
    ops = CpuOps(ALL)
    ops.expert_matrices(2, 32, 64, kind)
    assert ops.is_fast == (kind == "Q4_0"), "experts of floats are exact"
