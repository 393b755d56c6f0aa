"""Cosines and sines by position, however far and in whatever order positions come."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.compiler.weights import inverse_frequencies
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.runtime.rope import RopeTable, RopeTables, Rotation

INVERSE = inverse_frequencies(RopeSpec(theta=10000.0, dim=64), None)


def test_rows_are_cosines_and_sines() -> None:
    table = RopeTable(Rotation.of(INVERSE), CpuDevice())
    for length in (1, 512, 513, 9000, 5):
        rows = np.from_dlpack(table.reaching(length))
        angle = (np.arange(len(rows), dtype=np.float32)[:, None] * INVERSE).astype(np.float64)
        assert rows.shape == (len(rows), 2, 32)
        assert len(rows) >= length
        assert np.abs(rows[:, 0] - np.cos(angle)).max() <= 1e-6
        assert np.abs(rows[:, 1] - np.sin(angle)).max() <= 1e-6


def test_growing_changes_nothing_that_was_there() -> None:
    table = RopeTable(Rotation.of(INVERSE), CpuDevice())
    before = np.from_dlpack(table.reaching(1)).copy()
    grown = np.from_dlpack(table.reaching(5000))
    assert grown[: len(before)].tobytes() == before.tobytes()
    at_once = np.from_dlpack(RopeTable(Rotation.of(INVERSE), CpuDevice()).reaching(7001))
    assert at_once[: len(grown)].tobytes() == grown.tobytes()


@pytest.mark.parametrize("start", [600, 10**4, 2**24 - 50, 2**31 - 50])
def test_distances_are_exact_wherever_a_text_is(start: int) -> None:
    """Turned back by the first row, each of 40 is turned by its distance from that."""
    ropes = RopeTables([Rotation.of(INVERSE)], CpuDevice(), far=599, step_tokens=40)
    (tensor,), rows, _ = ropes.rows(array("i", range(start, start + 40)))
    table = np.from_dlpack(tensor).astype(np.float64)[rows]
    turns = table[:, 0] + 1j * table[:, 1]
    angle = np.arange(40)[:, None] * INVERSE.astype(np.float64)
    assert np.abs(turns * turns[0].conj() - np.exp(1j * angle)).max() <= 1e-6


def test_a_row_does_not_depend_on_its_step() -> None:
    """Positions within reach have the rows of a table, those beyond the same in any company."""
    positions = [5, 600, 2**24, 599, 10**6, 700]
    ropes = RopeTables(
        [Rotation.of(INVERSE), Rotation.of(INVERSE / 8)], CpuDevice(), far=599, step_tokens=8
    )
    (tensor, other), own, of_sinks = ropes.rows(array("i", positions))
    together = np.from_dlpack(tensor)[own + of_sinks].copy()
    assert np.from_dlpack(other).shape == np.from_dlpack(tensor).shape
    plain = np.from_dlpack(RopeTable(Rotation.of(INVERSE), CpuDevice()).reaching(600))
    assert together[[0, 3]].tobytes() == plain[[5, 599]].tobytes()
    assert together[6:].tobytes() == plain[[min(p, 599) for p in positions]].tobytes()
    for i, position in enumerate(positions):
        alone = RopeTables([Rotation.of(INVERSE)], CpuDevice(), far=599, step_tokens=1)
        (tensor,), own, of_sinks = alone.rows(array("i", [position]))
        assert np.from_dlpack(tensor)[own + of_sinks].tobytes() == together[[i, i + 6]].tobytes()


def test_frequencies_and_their_scaling() -> None:
    exact = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    plain = inverse_frequencies(RopeSpec(500000.0, 128), None)
    assert np.abs(plain / exact - 1).max() <= 1e-6
    linear = inverse_frequencies(RopeSpec(500000.0, 128, linear=8.0), None)
    assert (linear == plain / np.float32(8)).all()
    factors = np.linspace(1, 32, 64, dtype=np.float32)
    assert (inverse_frequencies(RopeSpec(500000.0, 128), factors) == plain / factors).all()


def test_rows_are_multiplied_by_the_magnitude() -> None:
    """Those of the table, and those behind it, which are made for a step."""
    positions = array("i", [0, 3, 599, 600, 2**24])
    ropes = [Rotation.of(INVERSE), Rotation.of(INVERSE, 1.25)]
    (plain, large), own, _ = RopeTables(ropes, CpuDevice(), far=599, step_tokens=5).rows(positions)
    rows = np.from_dlpack(plain)[own] * np.float32(1.25)
    assert np.from_dlpack(large)[own].tobytes() == rows.tobytes()
