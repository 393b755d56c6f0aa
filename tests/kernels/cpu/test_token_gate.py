"""Gates with one factor a token, in place, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.token_gate import token_gate

K, WIDTH, EPS = 64, 40, 1e-5


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("kind", ["plain", "norm", "layer_norm"])
@each_isa()
def test_against_float64(isa: Isa, kind: str, m: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((m, size)).astype(np.float32) for size in (K, WIDTH))
    weight, bias, gate = (rng.standard_normal(K).astype(np.float32) for _ in range(3))
    read = x.astype(np.float64)
    if kind == "layer_norm":
        read = read - read.mean(axis=1, keepdims=True)
    if kind != "plain":
        read = read / np.sqrt((read**2).mean(axis=1, keepdims=True) + EPS) * weight
    if kind == "layer_norm":
        read += bias
    expected = y / (1 + np.exp(-(read @ gate)))[:, None]
    given = [x, x if kind == "plain" else weight, *([bias] if kind == "layer_norm" else [])]
    build(isa, token_gate, kind, K, WIDTH, EPS)(*given, gate, y)
    assert np.abs(y - expected).max() <= 2e-6


@each_isa()
def test_far_ends_and_broken_numbers(isa: Isa) -> None:
    """A gate that is shut or open gives no broken number, and hides none."""
    x = np.zeros((4, K), np.float32)
    x[0, 0], x[1, 0], x[2, 0] = 1e6, -1e6, np.nan
    y, gate = np.full((4, WIDTH), 3, np.float32), np.ones(K, np.float32)
    build(isa, token_gate, "plain", K, WIDTH)(x, x, gate, y)
    assert (y[0] == 3).all() and (np.abs(y[1]) < 1e-30).all()
    assert np.isnan(y[2]).all() and (np.abs(y[3] - 1.5) < 1e-6).all()
