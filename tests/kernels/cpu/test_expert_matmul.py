"""Products of chosen experts: a row has the very bits of the product with its expert's matrix."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from format_floats import floats_of
from kernel_tools import Array, build, each_isa, each_isa_and, grouped, prepare

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import pack, pack_floats
from mlc_llm.kernels.cpu.amx_exact import ExactProduct
from mlc_llm.kernels.cpu.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cpu.matmul import matmul

KINDS = ("Q4_0", "Q4_K", "Q8_0", "Q6_K", "F16", "BF16", "F32")
EXPERTS, ROWS, COLUMNS = 4, 96, 160
LOADS = (
    (0, 1, 0, 0), (1, 1, 1, 1), (3, 0, 9, 2), (0, 0, 0, 17), (5, 8, 0, 1), (10, 0, 33, 12),
    (40, 1, 4, 8), (7, 7, 7, 7), (0, 15, 0, 0),
)  # fmt: skip
"""Rows of each expert: none, few for vectors, more for tiles, tiles that end in the next expert."""


def stack(fmt: WeightFormat, experts: int, n: int, k: int) -> Array:
    """Random packed matrices, one behind the other."""
    return np.stack([np.asarray(_matrix(fmt, n, k, seed)) for seed in range(experts)])


@cache
def _matrix(fmt: WeightFormat, n: int, k: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if fmt.is_float:
        return pack_floats(floats_of(fmt, rng, n, k), fmt).tensor
    q = rng.integers(0, 2**fmt.bits, (n, k), dtype=np.uint8)
    scale, low = rng.standard_normal((2, n, k // fmt.group)).astype(np.float16).astype(np.float32)
    return pack(grouped(fmt, q, scale, low), fmt).tensor


def starts_of(load: tuple[int, ...]) -> Array:
    return np.concatenate([[0], np.cumsum(load)]).astype(np.int32)


def check(isa: Isa, shape: ExpertShape, load: tuple[int, ...], width: int, first: int) -> None:
    """AssertionError unless the bits are those of `matmul`, and nothing else is written."""
    x = np.random.default_rng(sum(load)).standard_normal((sum(load), shape.k)).astype(np.float32)
    matrices, starts = stack(shape.fmt, shape.experts, shape.n, shape.k), starts_of(load)
    (read,) = prepare(isa, shape.fmt, x)
    y = np.full((len(x), width), np.nan, np.float32)
    build(isa, expert_matmul, shape, isa, width, first)(starts, read, matrices, y)
    dense = build(isa, matmul, shape.n, shape.k, shape.fmt, isa, accumulate=False)
    for e, (start, end) in enumerate(pairwise(starts)):
        expected = np.zeros((end - start, shape.n), np.float32)
        if end > start:
            dense(read[start:end], matrices[e], expected)
        found = y[start:end, first : first + shape.n]
        assert found.tobytes() == expected.tobytes(), f"expert {e} of loads {load}"
    assert np.isnan(np.delete(y, np.s_[first : first + shape.n], axis=1)).all()


@pytest.mark.one_of(6)
@each_isa_and("kind", KINDS)
def test_rows_meet_the_matrix_of_their_expert(isa: Isa, kind: str) -> None:
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    k = COLUMNS if fmt.span == 1 else 256
    for load in LOADS:
        check(isa, ExpertShape(EXPERTS, ROWS, k, fmt), load, ROWS, 0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@each_isa(with_amx=True)
def test_tiles_and_vectors_have_the_same_bits(isa: Isa, kind: str) -> None:
    fmt = format_of_kind(kind, half=True, fixed_point=True)
    for load in LOADS:
        check(isa, ExpertShape(EXPERTS, ROWS, COLUMNS, fmt), load, ROWS, 0)


@pytest.mark.one_of(3)
@each_isa_and("kind", ["Q4_0", "F32"])
def test_into_a_part_of_the_columns(isa: Isa, kind: str) -> None:
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    for first in (0, 64):
        check(isa, ExpertShape(3, 64, 64, fmt), (2, 0, 19), 128, first)


@each_isa(with_amx=True)
def test_more_rows_than_a_chunk_has(isa: Isa) -> None:
    """One expert has three chunks, another a chunk and a row."""
    fmt = format_of_kind("Q4_0", half=True, fixed_point=True)
    k = 3072
    chunk = ExactProduct(k, fmt, False).blocking.row_blocks * 16
    check(isa, ExpertShape(3, 32, k, fmt), (2 * chunk + 5, 9, chunk + 1), 32, 0)


@each_isa_and("kind", ["Q4_0", "F32"])
def test_matrices_without_rows_are_not_read(isa: Isa, kind: str) -> None:
    """Numbers of matrices that nobody asked for would show."""
    fmt = format_of_kind(kind, half=isa.half, fixed_point=isa.amx_tiles)
    shape, load = ExpertShape(4, 64, 64, fmt), (0, 3, 0, 1)
    matrices = stack(fmt, 4, 64, 64)
    (read,) = prepare(isa, fmt, np.ones((4, 64), np.float32))
    results = []
    for junk in (0, -1):
        for e in (0, 2):
            matrices[e].view(np.int32)[...] = junk
        y = np.full((4, 64), np.nan, np.float32)
        build(isa, expert_matmul, shape, isa)(starts_of(load), read, matrices, y)
        results.append(y.tobytes())
    assert results[0] == results[1] and not np.isnan(y).any()
