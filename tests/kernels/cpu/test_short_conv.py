"""A short convolution over ragged rows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.short_conv import short_conv

WIDTH, SLOTS = 64, 7
ROWS = {
    "decode": [(0, 1, 2, 3), (1, 1, 0, 6)],
    "prompts": [(0, 9, 2, 3), (9, 2, 2, 5), (11, 1, 0, 1), (12, 5, 4, 6)],
}
"""First token, number of tokens, slot to read, slot to write; two rows read one slot."""


def reference(thirds: Array, weight: Array, before: Array) -> tuple[Array, Array]:
    """The results of one row, float64, and what comes before the next row."""
    b, c, u = np.split(thirds.astype(np.float64), 3, axis=1)
    kernel = weight.shape[1]
    known = np.concatenate([before.astype(np.float64), b * u])
    sums = [np.einsum("jd,dj->d", known[t : t + kernel], weight) for t in range(len(thirds))]
    return c * np.array(sums), known[len(known) - kernel + 1 :]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kernel", [2, 3, 7])
@each_isa()
def test_against_float64(isa: Isa, kernel: int, name: str) -> None:
    rng, rows = np.random.default_rng(0), ROWS[name]
    m = sum(count for _, count, _, _ in rows)
    thirds = rng.standard_normal((m, 3 * WIDTH)).astype(np.float32)
    weight = rng.standard_normal((WIDTH, kernel)).astype(np.float32)
    state = rng.standard_normal((SLOTS, kernel - 1, WIDTH)).astype(np.float32)
    before, out = state.copy(), np.full((m, WIDTH), np.nan, np.float32)
    build(isa, short_conv, WIDTH, kernel)(thirds, weight, state_rows(rows), state, out)
    for first, count, old, new in rows:
        y, kept = reference(thirds[first : first + count], weight, before[old])
        assert np.abs(out[first : first + count] - y).max() <= 1e-5
        assert np.abs(state[new] - kept).max() <= 1e-6
    others = sorted(set(range(SLOTS)) - {row[3] for row in rows})
    assert state[others].tobytes() == before[others].tobytes()


@each_isa()
def test_a_row_in_pieces_gives_the_same_bits(isa: Isa) -> None:
    rng, kernel = np.random.default_rng(1), build(isa, short_conv, WIDTH, 4)
    thirds = rng.standard_normal((12, 3 * WIDTH)).astype(np.float32)
    weight = rng.standard_normal((WIDTH, 4)).astype(np.float32)
    state, whole = np.zeros((4, 3, WIDTH), np.float32), np.zeros((12, WIDTH), np.float32)
    kernel(thirds, weight, state_rows([(0, 12, 0, 1)]), state, whole)
    slot, first = 0, 0
    for count in (1, 2, 8, 1):
        part = np.zeros((count, WIDTH), np.float32)
        row = state_rows([(0, count, slot, 5 - slot if slot else 2)])
        kernel(thirds[first : first + count], weight, row, state, part)
        assert part.tobytes() == whole[first : first + count].tobytes()
        first, slot = first + count, int(row[0, 3])
    assert state[slot].tobytes() == state[1].tobytes()
