"""Sums in place and functions of single numbers, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.elementwise import STRETCH, add, beside, changed, multiply

WIDTH = 40


@pytest.mark.one_of(2)
@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("has_y, has_bias", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@each_isa()
def test_add(isa: Isa, scale: float, has_y: bool, has_bias: bool, m: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((m, WIDTH)).astype(np.float32) for _ in range(2))
    columns = WIDTH if has_y else WIDTH - 8
    bias = rng.standard_normal(columns).astype(np.float32)
    expected = x.astype(np.float64)
    more = (y if has_y else 0) + (bias if has_bias else np.zeros(columns))
    expected[:, :columns] += scale * more
    given = [*([y] if has_y else []), *([bias] if has_bias else [])]
    build(isa, add, WIDTH, columns, scale, has_y=has_y, has_bias=has_bias)(*given, x)
    assert np.abs(x - expected).max() <= 1e-6


@pytest.mark.parametrize("width", [WIDTH, STRETCH + 32])
@pytest.mark.parametrize("factor, cap", [(0.25, None), (1.0, 3.0), (7.0, 3.0)])
@each_isa()
def test_changed(isa: Isa, factor: float, cap: float | None, width: int) -> None:
    rng = np.random.default_rng(0)
    x = (5 * rng.standard_normal((3, width))).astype(np.float32)
    x[1, 7] = np.nan
    y = np.zeros_like(x)
    build(isa, changed, width, factor, cap)(x, y)
    expected = factor * x.astype(np.float64)
    expected = expected if cap is None else cap * np.tanh(expected / cap)
    assert np.isnan(y[1, 7])
    y[1, 7] = expected[1, 7] = 0
    assert (np.abs(y - expected) <= 1e-6 * np.abs(expected)).all()


@pytest.mark.parametrize("m", [1, 9])
@each_isa()
def test_multiply(isa: Isa, m: int) -> None:
    x = np.random.default_rng(0).standard_normal((m, WIDTH)).astype(np.float32)
    expected = x * np.float32(0.7)
    build(isa, multiply, WIDTH)(np.array([0.7], np.float32), x)
    assert x.tobytes() == expected.tobytes()


@pytest.mark.parametrize("m", [1, 9])
@each_isa()
def test_beside(isa: Isa, m: int) -> None:
    rng = np.random.default_rng(0)
    gate, up = (rng.standard_normal((m, size)).astype(np.float32) for size in (32, WIDTH))
    y = np.zeros((m, 48), np.float32)
    build(isa, beside, (32, WIDTH), (8, 16), 24)(gate, up, y)
    assert y.tobytes() == np.concatenate([gate[:, 8:], up[:, 16:]], axis=1).tobytes()
