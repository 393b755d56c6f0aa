"""A selective state space over ragged rows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa, in_blocks
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.silu_conv import conv_silu
from mlc_llm.kernels.cpu.state_space import gated_norm, scan

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


def arguments(m: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(m)
    mixed, projected = rng.standard_normal((m, CHANNELS)), rng.standard_normal((m, COLUMNS))
    projected *= 6  # so that dt is tiny, or as large as its input
    bias, d = rng.standard_normal(HEADS), rng.standard_normal((HEADS, 1))
    a = -np.exp(rng.standard_normal((HEADS, 1)))
    return tuple(one.astype(np.float32) for one in (mixed, projected, bias, a, d))


@pytest.mark.parametrize("name", ROWS)
@each_isa()
def test_scan(isa: Isa, name: str) -> None:
    rows = ROWS[name]
    m = sum(count for _, count, _, _ in rows)
    mixed, projected, bias, a, d = given = arguments(m)
    state = np.random.default_rng(1).standard_normal((SLOTS, HEADS, DIM, SIZE)).astype(np.float32)
    expected, state = state.astype(np.float64), in_blocks(state, isa)
    out = np.full((m, INNER), np.nan, np.float32)
    start = INNER + CHANNELS
    call = build(isa, scan, HEADS, DIM, SIZE, GROUPS, COLUMNS, start, isa.lanes)
    call(*given, state_rows(rows), state, out)
    dt = np.logaddexp(0, projected[:, start : start + HEADS].astype(np.float64) + bias)
    x, b, c = np.split(mixed.astype(np.float64), [INNER, INNER + GROUPS * SIZE], axis=1)
    x = x.reshape(m, HEADS, DIM)
    b, c = (np.repeat(one.reshape(m, GROUPS, SIZE), HEADS // GROUPS, axis=1) for one in (b, c))
    for first, count, old, new in rows:
        h = expected[old].copy()
        for t in range(first, first + count):
            h = h * np.exp(dt[t] * a[:, 0])[:, None, None]
            h += np.einsum("h,hp,hn->hpn", dt[t], x[t], b[t])
            v = np.einsum("hpn,hn->hp", h, c[t]) + d * x[t]
            assert np.abs(out[t] - v.reshape(-1)).max() <= 1e-5 * max(1, np.abs(v).max())
        expected[new] = h
    assert np.abs(state - in_blocks(expected, isa)).max() <= 1e-5 * np.abs(expected).max()


@each_isa()
def test_a_row_in_pieces_gives_the_same_bits(isa: Isa) -> None:
    call = build(isa, scan, HEADS, DIM, SIZE, GROUPS, COLUMNS, INNER + CHANNELS, isa.lanes)
    mixed, projected, *rest = arguments(12)
    state = np.zeros((6, HEADS, DIM, SIZE), np.float32)
    whole, slot, first = np.zeros((12, INNER), np.float32), 0, 0
    call(mixed, projected, *rest, state_rows([(0, 12, 0, 5)]), state, whole)
    for slot, count in enumerate((1, 2, 8, 1)):
        part, of = np.zeros((count, INNER), np.float32), slice(first, first + count)
        row = state_rows([(0, count, slot, slot + 1)])
        call(mixed[of], projected[of], *rest, row, state, part)
        assert part.tobytes() == whole[of].tobytes()
        first += count
    assert state[4].tobytes() == state[5].tobytes()


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
