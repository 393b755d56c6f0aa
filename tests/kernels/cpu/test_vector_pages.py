"""Vectors of tokens in pages: what goes in comes out, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.vector_pages import keep, kept

PAGE, DIM, WIDTH = 16, 32, 160


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@each_isa()
def test_vectors_come_back(isa: Isa, kv_heads: int) -> None:
    """Several tensors of pages have a part of each vector; the last one has room left."""
    rng, room = np.random.default_rng(kv_heads), 2 * kv_heads * DIM
    x = rng.standard_normal((5, WIDTH)).astype(np.float32)
    x[0, :2] = 1e5, -1e5
    slots, others = np.array([37, 0, 1, 79, 15], np.int32), np.array([36, 78], np.int32)
    wanted = np.concatenate([slots[::-1], [-1], others]).astype(np.int32)
    y = np.full((len(wanted), WIDTH), np.nan, np.float32)
    for start in range(0, WIDTH, room):
        count = min(room, WIDTH - start)
        sizes = (kv_heads, DIM, isa.kv_dtype, WIDTH, start, count)
        pages = np.full((5, kv_heads, 2, PAGE * DIM), 7, isa.kv_dtype)
        build(isa, keep, *sizes)(x, slots, pages)
        assert (pages == 7).sum() == pages.size - len(x) * count
        build(isa, kept, *sizes)(pages, wanted, y)
    stored = x.clip(-65504, 65504).astype(isa.kv_dtype).astype(np.float32)
    assert (y[:5] == stored[::-1]).all()
    assert (y[5] == 0).all() and (y[6:] == 7).all()
