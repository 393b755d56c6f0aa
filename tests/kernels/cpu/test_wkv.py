"""Token shifts and time mixing of RWKV-7 over ragged rows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa
from state_rows import state_rows

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.token_shift import token_shift
from mlc_llm.kernels.cpu.wkv import wkv

HEADS, SIZE, SLOTS, EPS = 4, 16, 7, 1e-3
WIDTH = HEADS * SIZE
ROWS = {
    "decode": [(0, 1, 2, 3), (1, 1, 0, 6)],
    "prompts": [(0, 9, 2, 3), (9, 2, 3, 5), (11, 1, 0, 1), (12, 5, 4, 6)],
}
"""First token, number of tokens, slot to read, slot to write; one row reads what another wrote."""
VECTORS = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "norm", "norm_bias")


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("name", ROWS)
@each_isa()
def test_token_shift(isa: Isa, name: str, count: int) -> None:
    rng, rows = np.random.default_rng(0), ROWS[name]
    m = sum(tokens for _, tokens, _, _ in rows)
    x = rng.standard_normal((m, WIDTH)).astype(np.float32)
    factors = rng.random((count, WIDTH)).astype(np.float32)
    state = rng.standard_normal((SLOTS, 1, WIDTH)).astype(np.float32)
    expected, out = state.copy(), [np.full((m, WIDTH), np.nan, np.float32) for _ in range(count)]
    call = build(isa, token_shift, WIDTH, count)
    call(x, factors, state_rows(rows), state, *out)
    for first, tokens, old, new in rows:
        own = x[first : first + tokens]
        before = np.concatenate([expected[old], own[:-1]])
        for factor, found in zip(factors, out, strict=True):
            mixed = own + (before - own) * factor
            assert np.abs(found[first : first + tokens] - mixed).max() <= 1e-6
        expected[new] = own[-1]
    assert (state == expected).all()


def arguments(m: int) -> tuple[dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(m)
    parts = {name: rng.standard_normal((m, WIDTH)).astype(np.float32) for name in "rwkvagbf"}
    parts["w"] *= 4  # so that decays are near 1, or as small as they can be
    vectors = {name: rng.standard_normal(WIDTH).astype(np.float32) for name in VECTORS}
    return parts, vectors


def expected_of(
    parts: dict[str, Array], vectors: dict[str, Array], state: Array, rows: list[tuple[int, ...]],
    *, is_first: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """In float64: what each token gives, and the states."""
    p = {name: one.astype(np.float64) for name, one in parts.items()}
    c = {name: one.astype(np.float64) for name, one in vectors.items()}
    states, out = state.astype(np.float64), np.zeros_like(p["r"])
    decay = np.exp(-np.exp(-0.5) * sigmoid(p["w"] + c["w0"]))
    rate, v = sigmoid(p["a"] + c["a0"]), p["v"]
    if not is_first:
        v = v + (p["f"] - v) * sigmoid(p["b"] + c["v0"])
    u, k = p["k"] * c["k_k"], p["k"] * (1 + (rate - 1) * c["k_a"])
    for first, tokens, old, new in rows:
        states[new] = states[old]
        for t in range(first, first + tokens):
            for h in range(HEADS):
                at = slice(h * SIZE, (h + 1) * SIZE)
                unit = u[t, at] / np.linalg.norm(u[t, at])
                s = states[new, h]
                seen = unit @ s
                s = decay[t, at][:, None] * s - np.outer(rate[t, at] * unit, seen)
                states[new, h] = s = s + np.outer(k[t, at], v[t, at])
                o = p["r"][t, at] @ s
                o = (o - o.mean()) / np.sqrt(o.var() + EPS) * c["norm"][at] + c["norm_bias"][at]
                own = (p["r"][t, at] * k[t, at] * c["r_k"][at]).sum() * v[t, at]
                out[t, at] = (o + own) * p["g"][t, at]
    return out, states


@pytest.mark.one_of(5)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", ROWS)
@each_isa()
def test_time_mixing(isa: Isa, name: str, is_first: bool) -> None:
    rows = ROWS[name]
    m = sum(tokens for _, tokens, _, _ in rows)
    parts, vectors = arguments(m)
    state = np.random.default_rng(1).standard_normal((SLOTS, HEADS, SIZE, SIZE)).astype(np.float32)
    exact, states = expected_of(parts, vectors, state, rows, is_first=is_first)
    if is_first:
        del parts["b"], parts["f"], vectors["v0"]
    out = np.full((m, WIDTH), np.nan, np.float32)
    call = build(isa, wkv, HEADS, SIZE, EPS, isa.lanes, is_first=is_first)
    call(*parts.values(), *vectors.values(), state_rows(rows), state, out)
    assert np.abs(out - exact).max() <= 2e-5 * np.abs(exact).max()
    assert np.abs(state - states).max() <= 1e-5 * np.abs(states).max()
