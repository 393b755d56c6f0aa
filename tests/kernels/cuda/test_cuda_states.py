"""Mixers that keep a state, on a GPU: convolutions, scans, and norms beside a gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from state_rows import state_rows

from mlc_llm.kernels.cuda.causal_conv import ConvShape, causal_conv
from mlc_llm.kernels.cuda.gated_norms import gated_norm
from mlc_llm.kernels.cuda.head_states import ScanShape
from mlc_llm.kernels.cuda.scans import DeltaShape, delta_scan, selective_scan

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]
ROWS = state_rows([(0, 3, 0, 1), (3, 1, 2, 3), (4, 2, 1, 4), (6, 2, 3, 2), (8, 1, 0, 5)])
"""The third one goes on behind the first, the fourth behind the second, in a slot that was read."""
TOKENS, SLOTS, FREE = 9, 7, 6
"""FREE: a slot that nobody touches."""


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def states(seed: int, *shape: int) -> Array:
    found = normal(seed, SLOTS, *shape)
    found[0] = 0
    return found


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def convolved(x: Array, weight: Array, state: Array) -> tuple[Array, Array]:
    """The sums of each token, and the states behind the rows."""
    kept = weight.shape[1] - 1
    found, state = np.zeros((TOKENS, len(weight))), state.astype(np.float64)
    for first, count, old, new, *_ in ROWS:
        whole = np.concatenate([state[old], x[first : first + count]])
        for t in range(count):
            found[first + t] = (whole[t : t + kept + 1] * weight.T).sum(axis=0)
        state[new] = whole[len(whole) - kept :]
    return found, state


def test_a_gated_convolution(emulate: Emulator) -> None:
    x, weight, state = normal(0, TOKENS, 3 * 130), normal(1, 130, 3), states(2, 2, 130)
    kernel = causal_conv(ConvShape(130, 3, 390, is_gated=True))
    out = np.zeros((TOKENS, 130), np.float32)
    *_, after, out = emulate(kernel, x, weight, ROWS, state, out)
    b, c, u = np.split(x.astype(np.float64), 3, axis=1)
    sums, wanted = convolved(b * u, weight, state)
    assert np.allclose(out, c * sums, rtol=1e-5, atol=1e-5)
    assert np.allclose(after, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_before_silu(emulate: Emulator, has_bias: bool) -> None:
    x, weight, bias = normal(0, TOKENS, 70), normal(1, 48, 4), normal(3, 48)
    state = states(2, 3, 48)
    kernel = causal_conv(ConvShape(48, 4, 70, 11, has_bias=has_bias))
    given = [x, weight, *([bias] if has_bias else []), ROWS, state]
    *_, after, out = emulate(kernel, *given, np.zeros((TOKENS, 48), np.float32))
    sums, wanted = convolved(x[:, 11:59].astype(np.float64), weight, state)
    assert np.allclose(out, silu(sums + bias if has_bias else sums), rtol=1e-5, atol=1e-5)
    assert np.allclose(after, wanted, rtol=1e-6, atol=1e-6)


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


@pytest.mark.parametrize(("heads", "head_dim", "size", "groups"), [(4, 10, 48, 2), (1, 16, 16, 1)])
def test_a_state_space(
    emulate: Emulator, heads: int, head_dim: int, size: int, groups: int
) -> None:
    inner = heads * head_dim
    mixed, dt = normal(0, TOKENS, inner + 2 * groups * size), 3 * normal(1, TOKENS, heads + 7)
    bias, d, a = normal(2, heads), normal(3, heads, 1), -np.exp(normal(4, heads, 1))
    state = states(5, heads, head_dim, size)
    kernel = selective_scan(ScanShape(heads, head_dim, size), groups, heads + 7, 5)
    out = np.zeros((TOKENS, inner), np.float32)
    *_, after, out = emulate(kernel, mixed, dt, bias, a, d, ROWS, state, out)
    whole, wanted = state.astype(np.float64), np.zeros((TOKENS, heads, head_dim))
    for first, count, old, new, *_ in ROWS:
        h = whole[old]
        for t in range(first, first + count):
            x = mixed[t, :inner].reshape(heads, head_dim).astype(np.float64)
            bc = mixed[t, inner:].reshape(2, groups, size).repeat(heads // groups, axis=1)
            step = softplus(dt[t, 5 : 5 + heads].astype(np.float64) + bias)
            h = h * np.exp(step * a[:, 0])[:, None, None]
            h = h + (step[:, None] * x)[:, :, None] * bc[0][:, None]
            wanted[t] = (h * bc[1][:, None]).sum(axis=2) + d * x
        whole[new] = h
    assert np.allclose(out, wanted.reshape(TOKENS, -1), rtol=1e-4, atol=1e-4)
    assert np.allclose(after, whole, rtol=1e-5, atol=1e-5)
    assert after[FREE].tobytes() == state[FREE].tobytes()


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_delta_rule(emulate: Emulator, in_turn: bool) -> None:
    key_heads, heads, size, head_dim = 2, 4, 40, 9
    keys, inner = key_heads * size, heads * head_dim
    mixed, a, b = normal(0, TOKENS, 2 * keys + inner), normal(1, TOKENS, 9), normal(2, TOKENS, 4)
    bias, decay = normal(3, heads), -np.exp(normal(4, heads))
    state = states(5, heads, head_dim, size)
    shape = DeltaShape(key_heads, ScanShape(heads, head_dim, size), in_turn, (9, 3), (4, 0))
    out = np.zeros((TOKENS, inner), np.float32)
    *_, after, out = emulate(delta_scan(shape), mixed, a, b, bias, decay, ROWS, state, out)
    whole, wanted = state.astype(np.float64), np.zeros((TOKENS, heads, head_dim))
    own = np.arange(heads) % key_heads if in_turn else np.arange(heads) // (heads // key_heads)
    for first, count, old, new, *_ in ROWS:
        h = whole[old]
        for t in range(first, first + count):
            qk = mixed[t, : 2 * keys].reshape(2, key_heads, size).astype(np.float64)
            qk = (qk / np.sqrt((qk**2).sum(axis=2, keepdims=True) + 1e-6))[:, own]
            v = mixed[t, 2 * keys :].reshape(heads, head_dim)
            step = softplus(a[t, 3 : 3 + heads].astype(np.float64) + bias)
            h = h * np.exp(step * decay)[:, None, None]
            change = v - (h * qk[1][:, None]).sum(axis=2)
            beta = 1 / (1 + np.exp(-b[t].astype(np.float64)))
            h = h + (beta[:, None] * change)[:, :, None] * qk[1][:, None]
            wanted[t] = (h * qk[0][:, None]).sum(axis=2) * size**-0.5
        whole[new] = h
    assert np.allclose(out, wanted.reshape(TOKENS, -1), rtol=1e-4, atol=1e-5)
    assert np.allclose(after, whole, rtol=1e-4, atol=1e-5)


def test_the_size_of_a_step_changes_no_bit(emulate: Emulator) -> None:
    shape = ScanShape(2, 8, 32)
    mixed, dt = normal(0, 6, 16 + 64), normal(1, 6, 2)
    given = normal(2, 2), -np.exp(normal(3, 2, 1)), normal(4, 2, 1)
    state, kernel = np.zeros((4, 2, 8, 32), np.float32), selective_scan(shape, 1, 2, 0)

    def run(rows: list[tuple[int, int, int, int]]) -> tuple[bytes, bytes]:
        out = np.zeros((6, 16), np.float32)
        table = state_rows(rows)
        *_, after, out = emulate(kernel, mixed, dt, *given, table, state.copy(), out)
        return after[3].tobytes(), out.tobytes()

    assert run([(0, 6, 0, 3)]) == run([(0, 2, 0, 1), (2, 3, 1, 2), (5, 1, 2, 3)])


def test_rows_that_fill_up_a_step(emulate: Emulator) -> None:
    """They read the empty state and write a slot that nobody reads."""
    x, weight, state = normal(0, 3, 48), normal(1, 16, 3), states(2, 2, 16)
    kernel, out = causal_conv(ConvShape(16, 3, 48, is_gated=True)), np.zeros((3, 16), np.float32)
    rows = state_rows([(0, 1, 3, 4), (1, 1, 0, FREE), (2, 1, 0, FREE)])
    together = emulate(kernel, x, weight, rows, state.copy(), out)[-1]
    alone = emulate(kernel, x[:1], weight, rows[:1], state.copy(), out[:1])[-1]
    assert alone.tobytes() == together[:1].tobytes()


@pytest.mark.parametrize("gate_first", [False, True])
def test_a_norm_beside_a_gate(emulate: Emulator, gate_first: bool) -> None:
    z, v = normal(0, 3, 100), normal(1, 3, 80)
    weight = normal(2, *((2, 40) if gate_first else (40,)))
    kernel = gated_norm(2, 40, 100, 13, 1e-5, gate_first=gate_first)
    found = emulate(kernel, z, weight, v.copy())[-1]
    gate = silu(z[:, 13:93].astype(np.float64)).reshape(3, 2, 40)
    x = v.reshape(3, 2, 40).astype(np.float64)
    x = x * gate if gate_first else x
    x = x / np.sqrt((x**2).mean(axis=2, keepdims=True) + 1e-5) * weight
    wanted = x if gate_first else x * gate
    assert np.allclose(found, wanted.reshape(3, 80), rtol=1e-5, atol=1e-6)


def test_machine_code() -> None:
    wanted = {"LDG", "STG"}
    check_code(causal_conv(ConvShape(2048, 3, 6144, is_gated=True)), wanted)
    check_code(causal_conv(ConvShape(8192, 4, 12288, 64, has_bias=True)), wanted)
    check_code(selective_scan(ScanShape(80, 64, 128), 1, 10576, 10496), {*wanted, "SHFL"})
    shape = DeltaShape(16, ScanShape(32, 128, 128), False, (64, 0), (64, 32))
    check_code(delta_scan(shape), {*wanted, "SHFL"})
    check_code(gated_norm(32, 128, 4096, 0, 1e-6, gate_first=False), wanted)
