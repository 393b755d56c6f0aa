"""A gated delta rule over ragged rows, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from chunk_tools import States, assert_same_bits_in_pieces, assert_states
from kernel_tools import Array, build, each_isa
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.delta_rule import (
    READS,
    SMALLEST,
    DeltaShape,
    delta_keys,
    delta_scan,
    normed_gate,
)
from mlc_llm.kernels.cpu.silu_conv import conv_silu
from mlc_llm.library.state_format import CHUNK

KEY_HEADS, KEY_DIM, HEADS, DIM = 2, 16, 4, 64
KEYS, INNER = KEY_HEADS * KEY_DIM, HEADS * DIM
CHANNELS, COLUMNS = 2 * KEYS + INNER, INNER + 16


def shape(in_turn: bool, isa: Isa) -> DeltaShape:
    """a and b stand in one tensor, behind each other."""
    return DeltaShape(
        KEY_HEADS, KEY_DIM, HEADS, DIM, in_turn, (COLUMNS, 8), (COLUMNS, 8 + HEADS), isa.lanes
    )


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def arguments(m: int, seed: int) -> tuple[Array, ...]:
    """mixed, the tensor of a and b, the bias of a, decay"""
    rng = np.random.default_rng(seed)
    mixed, numbers = rng.standard_normal((m, CHANNELS)), 4 * rng.standard_normal((m, COLUMNS))
    bias, decay = rng.standard_normal(HEADS), -np.exp(rng.standard_normal(HEADS))
    return tuple(one.astype(np.float32) for one in (mixed, numbers, bias, decay))


def unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + SMALLEST))


class Kernels:
    """Both kernels of the states."""

    def __init__(self, isa: Isa, in_turn: bool = False) -> None:
        self._keys = build(isa, delta_keys, shape(in_turn, isa))
        self._scan = build(isa, delta_scan, shape(in_turn, isa))
        self.states = States.new(KEY_HEADS, HEADS, DIM, KEY_DIM)

    def run(self, rows: Sequence[Sequence[int]], given: tuple[Array, ...]) -> Array:
        table, (mixed, numbers, *vectors), states = np.array(rows, np.int32), given, self.states
        out = np.full((len(mixed), INNER), np.nan, np.float32)
        units = np.full((len(mixed), KEY_HEADS, READS, KEY_DIM), np.nan, np.float32)
        dots = np.full((len(mixed), KEY_HEADS, READS, CHUNK), np.nan, np.float32)
        self._keys(mixed, table, states.keys, units, dots)
        kept = states.keys, units, dots, states.changes, states.numbers, states.bases
        self._scan(mixed, numbers, numbers, *vectors, table, *kept, out)
        return out


def expected_of(
    h: Array, given: tuple[Array, ...], first: int, count: int, in_turn: bool
) -> tuple[Array, Array]:
    """What some tokens give behind a state, and the state behind them."""
    mixed, numbers, bias, decay = (one.astype(np.float64) for one in given)
    q, k, v = np.split(mixed, [KEYS, 2 * KEYS], axis=1)
    of_head = np.arange(HEADS) % KEY_HEADS if in_turn else np.arange(HEADS) // (HEADS // KEY_HEADS)
    q, k = (unit(one.reshape(-1, KEY_HEADS, KEY_DIM))[:, of_head] for one in (q, k))
    a, b = numbers[:, 8 : 8 + HEADS], numbers[:, 8 + HEADS : 8 + 2 * HEADS]
    kept, beta = np.exp(decay * np.logaddexp(0, a + bias)), 1 / (1 + np.exp(-b))
    found = []
    for t in range(first, first + count):
        h = h * kept[t][:, None, None]
        change = beta[t][:, None] * (v[t].reshape(HEADS, DIM) - np.einsum("hpi,hi->hp", h, k[t]))
        h = h + change[:, :, None] * k[t][:, None, :]
        found.append((np.einsum("hpi,hi->hp", h, q[t]) / KEY_DIM**0.5).reshape(-1))
    return np.array(found), h


@pytest.mark.parametrize("in_turn", [False, True])
@each_isa()
def test_scan(isa: Isa, in_turn: bool) -> None:
    expected = partial(expected_of, in_turn=in_turn)
    assert_states(Kernels(isa, in_turn), isa, arguments, expected)


@each_isa()
def test_a_row_in_pieces_gives_the_same_bits(isa: Isa) -> None:
    assert_same_bits_in_pieces(lambda: Kernels(isa), arguments(50, 0))


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
