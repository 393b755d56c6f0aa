"""Sums of squares, of all rows and by expert."""

from __future__ import annotations

import numpy as np
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.squares import add_expert_squares, add_squares

ROWS = np.random.default_rng(0).standard_normal((7, 24)).astype(np.float32)


@each_isa()
def test_squares_are_added(isa: Isa) -> None:
    sums = np.ones(24, np.float32)
    build(isa, add_squares, 24)(ROWS, sums)
    assert np.allclose(sums, 1 + (ROWS**2).sum(axis=0), rtol=1e-6)


@each_isa()
def test_each_expert_has_sums_and_a_count(isa: Isa) -> None:
    loads = (2, 0, 5)
    starts = np.concatenate([[0], np.cumsum(loads)]).astype(np.int32)
    sums = np.ones((3, 25), np.float32)
    build(isa, add_expert_squares, 3, 24)(starts, ROWS, sums)
    for e, load in enumerate(loads):
        own = ROWS[starts[e] : starts[e + 1]]
        assert np.allclose(sums[e, :24], 1 + (own**2).sum(axis=0), rtol=1e-6)
        assert sums[e, 24] == 1 + load
