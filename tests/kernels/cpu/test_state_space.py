"""A selective state space over ragged rows, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from chunk_tools import States, assert_same_bits_in_pieces, assert_states
from kernel_tools import Array, build, each_isa
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.silu_conv import conv_silu
from mlc_llm.kernels.cpu.state_space import SpaceShape, gated_norm, scan, space_keys
from mlc_llm.library.state_format import CHUNK

HEADS, DIM, SIZE, GROUPS, SLOTS = 4, 16, 16, 2, 7
INNER = HEADS * DIM
CHANNELS = INNER + 2 * GROUPS * SIZE
COLUMNS = INNER + CHANNELS + HEADS + 28
"""z, x, B, C and dt, and what rows are padded with."""
ROWS = {
    "decode": [(0, 1, 2, 3), (1, 1, 0, 6)],
    "prompts": [(0, 9, 2, 3), (9, 2, 3, 5), (11, 1, 0, 1), (12, 5, 4, 6)],
}
"""First token, number of tokens, slot to read, slot to write; one row reads what another wrote."""


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


@pytest.mark.parametrize("name", ROWS)
@each_isa()
def test_convolution(isa: Isa, name: str) -> None:
    rng, rows, kernel = np.random.default_rng(0), ROWS[name], 4
    m = sum(count for _, count, _, _ in rows)
    x = rng.standard_normal((m, COLUMNS)).astype(np.float32)
    weight = rng.standard_normal((CHANNELS, kernel)).astype(np.float32)
    bias = rng.standard_normal(CHANNELS).astype(np.float32)
    state = rng.standard_normal((SLOTS, kernel - 1, CHANNELS)).astype(np.float32)
    expected, out = state.astype(np.float64), np.full((m, CHANNELS), np.nan, np.float32)
    call = build(isa, conv_silu, CHANNELS, kernel, COLUMNS, INNER, has_bias=True)
    call(x, weight, bias, state_rows(rows), state, out)
    for first, count, old, new in rows:
        own = x[first : first + count, INNER : INNER + CHANNELS]
        known = np.concatenate([expected[old], own.astype(np.float64)])
        sums = [np.einsum("jd,dj->d", known[t : t + kernel], weight) for t in range(count)]
        assert np.abs(out[first : first + count] - silu(np.array(sums) + bias)).max() <= 1e-5
        expected[new] = known[count:]
    assert np.abs(state - expected).max() <= 1e-6


def arguments(m: int, seed: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    mixed, projected = rng.standard_normal((m, CHANNELS)), rng.standard_normal((m, COLUMNS))
    projected *= 6  # so that dt is tiny, or as large as its input
    bias, d = rng.standard_normal(HEADS), rng.standard_normal((HEADS, 1))
    a = -np.exp(rng.standard_normal((HEADS, 1)))
    return tuple(one.astype(np.float32) for one in (mixed, projected, bias, a, d))


class Kernels:
    """Both kernels of the states."""

    def __init__(self, isa: Isa) -> None:
        shape = SpaceShape(HEADS, DIM, SIZE, GROUPS, isa.lanes)
        self._keys = build(isa, space_keys, shape)
        self._scan = build(isa, scan, shape, COLUMNS, INNER + CHANNELS)
        self.states = States.new(GROUPS, HEADS, DIM, SIZE)

    def run(self, rows: Sequence[Sequence[int]], given: tuple[Array, ...]) -> Array:
        table, (mixed, *_), states = np.array(rows, np.int32), given, self.states
        out = np.full((len(mixed), INNER), np.nan, np.float32)
        dots = np.full((len(mixed), GROUPS, 1, CHUNK), np.nan, np.float32)
        self._keys(mixed, table, states.keys, dots)
        kept = states.keys, dots, states.changes, states.numbers, states.bases
        self._scan(*given, table, *kept, out)
        return out


def expected_of(h: Array, given: tuple[Array, ...], first: int, count: int) -> tuple[Array, Array]:
    """What some tokens give behind a state, and the state behind them."""
    mixed, projected, bias, a, d = (one.astype(np.float64) for one in given)
    dt = np.logaddexp(0, projected[:, INNER + CHANNELS :][:, :HEADS] + bias)
    x, b, c = np.split(mixed, [INNER, INNER + GROUPS * SIZE], axis=1)
    x = x.reshape(-1, HEADS, DIM)
    b, c = (np.repeat(one.reshape(-1, GROUPS, SIZE), HEADS // GROUPS, axis=1) for one in (b, c))
    found = []
    for t in range(first, first + count):
        h = h * np.exp(dt[t] * a[:, 0])[:, None, None]
        h = h + np.einsum("h,hp,hn->hpn", dt[t], x[t], b[t])
        found.append((np.einsum("hpn,hn->hp", h, c[t]) + d * x[t]).reshape(-1))
    return np.array(found), h


@each_isa()
def test_scan(isa: Isa) -> None:
    assert_states(Kernels(isa), isa, arguments, expected_of)


@each_isa()
def test_a_row_in_pieces_gives_the_same_bits(isa: Isa) -> None:
    assert_same_bits_in_pieces(lambda: Kernels(isa), arguments(50, 0))


@each_isa()
def test_gated_norm(isa: Isa) -> None:
    rng, m, eps = np.random.default_rng(3), 5, 1e-5
    z = rng.standard_normal((m, COLUMNS)).astype(np.float32)
    v = rng.standard_normal((m, INNER)).astype(np.float32)
    weight = rng.standard_normal((GROUPS, INNER // GROUPS)).astype(np.float32)
    gated = (v * silu(z[:, :INNER].astype(np.float64))).reshape(m, GROUPS, -1)
    expected = gated / np.sqrt((gated**2).mean(axis=2, keepdims=True) + eps) * weight
    build(isa, gated_norm, GROUPS, INNER // GROUPS, COLUMNS, eps)(z, weight, v)
    assert np.abs(v - expected.reshape(m, INNER)).max() <= 1e-5
