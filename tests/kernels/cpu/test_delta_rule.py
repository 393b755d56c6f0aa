"""A gated delta rule over ragged rows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa, in_blocks
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.delta_rule import SMALLEST, DeltaShape, delta_scan, normed_gate
from mlc_llm.kernels.cpu.silu_conv import conv_silu

KEY_HEADS, KEY_DIM, HEADS, DIM, SLOTS = 2, 16, 4, 64, 7
KEYS, INNER = KEY_HEADS * KEY_DIM, HEADS * DIM
CHANNELS, COLUMNS = 2 * KEYS + INNER, INNER + 16
ROWS = {
    "decode": [(0, 1, 2, 3), (1, 1, 0, 6)],
    "prompts": [(0, 9, 2, 3), (9, 2, 3, 5), (11, 1, 0, 1), (12, 5, 4, 6)],
}
"""First token, number of tokens, slot to read, slot to write; one row reads what another wrote."""


def shape(in_turn: bool, isa: Isa) -> DeltaShape:
    """a and b stand in one tensor, behind each other."""
    return DeltaShape(
        KEY_HEADS, KEY_DIM, HEADS, DIM, in_turn, (COLUMNS, 8), (COLUMNS, 8 + HEADS), isa.lanes
    )


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def arguments(m: int) -> tuple[Array, ...]:
    """mixed, the tensor of a and b, the bias of a, decay"""
    rng = np.random.default_rng(m)
    mixed, numbers = rng.standard_normal((m, CHANNELS)), 4 * rng.standard_normal((m, COLUMNS))
    bias, decay = rng.standard_normal(HEADS), -np.exp(rng.standard_normal(HEADS))
    return tuple(one.astype(np.float32) for one in (mixed, numbers, bias, decay))


def unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + SMALLEST))


@pytest.mark.one_of(3)
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("name", ROWS)
@each_isa()
def test_scan(isa: Isa, name: str, in_turn: bool) -> None:
    rows = ROWS[name]
    m = sum(count for _, count, _, _ in rows)
    mixed, numbers, bias, decay = arguments(m)
    state = np.random.default_rng(1).standard_normal((SLOTS, HEADS, DIM, KEY_DIM))
    expected, state = state.copy(), in_blocks(state.astype(np.float32), isa)
    out = np.full((m, INNER), np.nan, np.float32)
    call = build(isa, delta_scan, shape(in_turn, isa))
    call(mixed, numbers, numbers, bias, decay, state_rows(rows), state, out)
    exact = mixed.astype(np.float64)
    q, k, v = np.split(exact, [KEYS, 2 * KEYS], axis=1)
    of_head = np.arange(HEADS) % KEY_HEADS if in_turn else np.arange(HEADS) // (HEADS // KEY_HEADS)
    q, k = (unit(one.reshape(m, KEY_HEADS, KEY_DIM))[:, of_head] for one in (q, k))
    a, b = numbers[:, 8 : 8 + HEADS].astype(np.float64), numbers[:, 8 + HEADS : 8 + 2 * HEADS]
    kept, beta = np.exp(decay * np.logaddexp(0, a + bias)), 1 / (1 + np.exp(-b.astype(np.float64)))
    for first, count, old, new in rows:
        h = expected[old].copy()
        for t in range(first, first + count):
            h *= kept[t][:, None, None]
            change = beta[t][:, None] * (
                v[t].reshape(HEADS, DIM) - np.einsum("hpi,hi->hp", h, k[t])
            )
            h += change[:, :, None] * k[t][:, None, :]
            o = np.einsum("hpi,hi->hp", h, q[t]) / KEY_DIM**0.5
            assert np.abs(out[t] - o.reshape(-1)).max() <= 1e-5
        expected[new] = h
    assert np.abs(state - in_blocks(expected, isa)).max() <= 1e-5


@each_isa()
def test_a_row_in_pieces_gives_the_same_bits(isa: Isa) -> None:
    call = build(isa, delta_scan, shape(False, isa))
    mixed, numbers, bias, decay = arguments(12)
    state = np.zeros((6, HEADS, DIM, KEY_DIM), np.float32)
    whole, first = np.zeros((12, INNER), np.float32), 0
    row = state_rows([(0, 12, 0, 5)])
    call(mixed, numbers, numbers, bias, decay, row, state, whole)
    for slot, count in enumerate((1, 2, 8, 1)):
        part, of = np.zeros((count, INNER), np.float32), slice(first, first + count)
        row = state_rows([(0, count, slot, slot + 1)])
        call(mixed[of], numbers[of], numbers[of], bias, decay, row, state, part)
        assert part.tobytes() == whole[of].tobytes()
        first += count
    assert state[4].tobytes() == state[5].tobytes()


@each_isa()
def test_normed_gate(isa: Isa) -> None:
    rng, m, eps = np.random.default_rng(3), 5, 1e-5
    z = rng.standard_normal((m, COLUMNS)).astype(np.float32)
    o = rng.standard_normal((m, INNER)).astype(np.float32)
    weight = rng.standard_normal(DIM).astype(np.float32)
    heads = o.astype(np.float64).reshape(m, HEADS, DIM)
    normed = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + eps) * weight
    expected = normed.reshape(m, INNER) * silu(z[:, 8 : 8 + INNER].astype(np.float64))
    build(isa, normed_gate, HEADS, DIM, COLUMNS, 8, eps)(z, weight, o)
    assert np.abs(o - expected).max() <= 1e-5


@each_isa()
def test_convolution_without_a_bias(isa: Isa) -> None:
    rng, m, kernel = np.random.default_rng(4), 6, 4
    x = rng.standard_normal((m, CHANNELS)).astype(np.float32)
    weight = rng.standard_normal((CHANNELS, kernel)).astype(np.float32)
    state, out = np.zeros((2, kernel - 1, CHANNELS), np.float32), np.zeros_like(x)
    call = build(isa, conv_silu, CHANNELS, kernel, CHANNELS, 0, has_bias=False)
    call(x, weight, state_rows([(0, m, 0, 1)]), state, out)
    known = np.concatenate([np.zeros((kernel - 1, CHANNELS)), x])
    sums = [np.einsum("jd,dj->d", known[t : t + kernel], weight) for t in range(m)]
    assert np.abs(out - silu(np.array(sums))).max() <= 1e-5
    assert (state[1] == x[m - kernel + 1 :]).all()
