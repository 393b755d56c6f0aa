"""Norms of queries and keys, in place, and of values, apart, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.head_norm import NormedHeads, copied_heads, head_norm

WIDTH, EPS = 200, 1e-5
RANGES = {
    "heads": (NormedHeads(0, 4, 16), NormedHeads(64, 2, 16)),
    "one": (NormedHeads(32, 3, 16),),
    "all of a token": (NormedHeads(0, 1, 64), NormedHeads(64, 1, 32)),
}


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("name", RANGES)
@each_isa()
def test_against_float64(isa: Isa, name: str, m: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, WIDTH)).astype(np.float32)
    weights = [rng.standard_normal(one.head_dim).astype(np.float32) for one in RANGES[name]]
    expected = x.astype(np.float64)
    for (start, heads, dim), weight in zip(RANGES[name], weights, strict=True):
        part = expected[:, start : start + heads * dim].reshape(m, heads, dim)
        part = part / np.sqrt((part**2).mean(axis=2, keepdims=True) + EPS) * weight
        expected[:, start : start + heads * dim] = part.reshape(m, -1)
    build(isa, head_norm, WIDTH, *RANGES[name], eps=EPS)(*weights, x)
    assert np.abs(x - expected).max() <= 1e-5


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("eps", [None, EPS])
@each_isa()
def test_heads_apart(isa: Isa, eps: float | None, m: int) -> None:
    x = np.random.default_rng(0).standard_normal((m, WIDTH)).astype(np.float32)
    before, y = x.copy(), np.zeros((m, 48), np.float32)
    build(isa, copied_heads, WIDTH, NormedHeads(32, 3, 16), eps)(x, y)
    expected = x[:, 32:80].astype(np.float64).reshape(m, 3, 16)
    if eps is not None:
        expected = expected / np.sqrt((expected**2).mean(axis=2, keepdims=True) + eps)
    assert np.abs(y - expected.reshape(m, 48)).max() <= (0 if eps is None else 1e-6)
    assert x.tobytes() == before.tobytes()
