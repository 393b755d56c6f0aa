"""Cosines and sines by position, however far and in whatever order positions come."""

from __future__ import annotations

import numpy as np

from mlc_llm.compiler.weights import inverse_frequencies
from mlc_llm.models.config import RopeConfig
from mlc_llm.runtime.rope import RopeTable

INVERSE = inverse_frequencies(RopeConfig(theta=10000.0, dim=64), None)


def test_rows_are_cosines_and_sines() -> None:
    positions = np.array([0, 5, 511, 512, 3, 9000], np.int32)
    rows = RopeTable(INVERSE).rows(positions)
    angle = (positions.astype(np.float32)[:, None] * INVERSE).astype(np.float64)
    assert rows.shape == (6, 2, 32)
    assert rows.dtype == np.float32
    assert np.abs(rows[:, 0] - np.cos(angle)).max() <= 1e-6
    assert np.abs(rows[:, 1] - np.sin(angle)).max() <= 1e-6


def test_growing_changes_nothing_that_was_there() -> None:
    early = np.arange(0, 600, 7, dtype=np.int32)
    table = RopeTable(INVERSE)
    before = table.rows(early).copy()
    table.rows(np.array([5000], np.int32))
    assert table.rows(early).tobytes() == before.tobytes()
    whole = RopeTable(INVERSE)
    assert whole.rows(np.array([4999], np.int32)).tobytes() == (
        table.rows(np.array([4999], np.int32)).tobytes()
    )


def test_frequencies_and_their_scaling() -> None:
    exact = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    plain = inverse_frequencies(RopeConfig(500000.0, 128), None)
    assert np.abs(plain / exact - 1).max() <= 1e-6
    linear = inverse_frequencies(RopeConfig(500000.0, 128, linear=8.0), None)
    assert (linear == plain / np.float32(8)).all()
    factors = np.linspace(1, 32, 64, dtype=np.float32)
    assert (inverse_frequencies(RopeConfig(500000.0, 128), factors) == plain / factors).all()
