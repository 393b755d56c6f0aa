"""Norms of queries and keys on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.kernels.cuda.head_norm import head_norm

pytestmark = pytest.mark.cuda
EPS = 1e-6


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (2, 80), (1, 1056)])
def test_each_head_is_normalised(emulate: Emulator, heads: int, head_dim: int) -> None:
    random, start = np.random.default_rng(head_dim), 16
    x = random.normal(size=(2, start + heads * head_dim + 8)).astype(np.float32)
    weight = random.normal(size=head_dim).astype(np.float32)
    kernel = head_norm(x.shape[1], start, heads, head_dim, EPS)
    _, found = emulate(kernel, weight, x)
    inside = slice(start, start + heads * head_dim)
    split = x[:, inside].astype(np.float64).reshape(2, heads, head_dim)
    normed = split / np.sqrt((split**2).mean(axis=2, keepdims=True) + EPS) * weight
    assert np.allclose(found[:, inside], normed.reshape(2, -1), rtol=1e-5, atol=1e-7)
    found[:, inside] = x[:, inside]
    assert found.tobytes() == x.tobytes()


def test_machine_code() -> None:
    check_code(head_norm(3072, 0, 16, 128, EPS), wanted={"LDG", "STG", "SHFL"})
