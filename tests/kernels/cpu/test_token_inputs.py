"""Inputs of layers by token, in place, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.token_inputs import token_inputs

LAYERS, WIDTH, PADDED, EPS = 3, 16, 64, 1e-3


@pytest.mark.parametrize("m", [1, 9])
@each_isa()
def test_against_float64(isa: Isa, m: int) -> None:
    rng = np.random.default_rng(0)
    context = rng.standard_normal((m, PADDED)).astype(np.float32)
    embedded = rng.standard_normal((m, LAYERS * WIDTH)).astype(np.float32)
    weight = rng.standard_normal(WIDTH).astype(np.float32)
    parts = context[:, : LAYERS * WIDTH].astype(np.float64).reshape(m, LAYERS, WIDTH)
    parts = parts / np.sqrt((parts**2).mean(axis=2, keepdims=True) + EPS) * weight
    expected = (embedded + parts.reshape(m, -1)) / np.sqrt(2)
    build(isa, token_inputs, LAYERS, WIDTH, PADDED, EPS)(context, weight, embedded)
    assert np.abs(embedded - expected).max() <= 1e-6
