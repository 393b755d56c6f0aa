"""Rows of a float matrix and rows of a packed embedding table."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa
from test_matmul import KINDS, ROWS, weights

from mlc_llm.backends.cpu.formats import padded_rows
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.packing import unpack
from mlc_llm.kernels.cpu.embedding import MANY, embedding
from mlc_llm.kernels.cpu.rows import PART, spread, take_rows


@each_isa()
def test_take_rows(isa: Isa) -> None:
    x = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)
    for wanted in ([6], [0, 6, 3, 3]):
        y = np.zeros((len(wanted), 40), np.float32)
        build(isa, take_rows, 40)(x, np.array(wanted, np.int32), y)
        assert (y == x[wanted]).all()


@each_isa()
def test_columns_are_spread(isa: Isa) -> None:
    """Over several parts, of which the last has no column that is known."""
    rng, count, total = np.random.default_rng(0), 2 * PART - 3, 3 * PART
    x = rng.standard_normal((2, 5)).astype(np.float32)
    row = rng.integers(-2, 5, count).astype(np.float32)
    y = np.full((2, total), np.nan, np.float32)
    build(isa, spread, 5, count, total, -3e38)(x, row, y)
    known = np.where(row < 0, np.float32(-3e38), x[:, row.astype(int)])
    assert (y == np.pad(known, ((0, 0), (0, total - count)))).all()


@pytest.mark.one_of(9)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [6, 6 * MANY])
@each_isa()
def test_embedding_is_the_dequantised_row(isa: Isa, count: int, kind: str) -> None:
    """Exact for all but fused multiply-and-add, which rounds once where the file's format twice."""
    w = weights(kind, isa)
    tokens = np.array([0, 15, 16, 69, 1, 1] * (count // 6), np.int32)
    y = np.full((len(tokens), w.columns), np.nan, np.float32)
    kernel = build(isa, embedding, padded_rows(ROWS), w.columns, w.format)
    kernel(tokens, *w.arguments(), y)
    expected = unpack(w.packed)[tokens]
    if w.format.has_minimum or w.format.is_fixed_point:
        assert (np.abs(y - expected) <= 2.0**-23 * w.magnitude[tokens]).all()
    else:
        assert (y == expected).all()
