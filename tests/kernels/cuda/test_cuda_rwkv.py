"""What RWKV-7 keeps a state for, on a GPU: mixtures with the token before, and time mixing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator
from state_rows import state_rows
from test_cuda_states import FREE, ROWS, TOKENS, Array, normal, states

from mlc_llm.kernels.cuda.token_shift import token_shift
from mlc_llm.kernels.cuda.wkv import wkv_finish, wkv_scan

pytestmark = pytest.mark.cuda
EPS = 64e-5


@pytest.mark.parametrize("count", [1, 6])
def test_mixtures_with_the_token_before(emulate: Emulator, count: int) -> None:
    x, factors, state = normal(0, TOKENS, 130), normal(1, count, 130), states(2, 1, 130)
    out = [np.zeros((TOKENS, 130), np.float32)] * count
    found = emulate(token_shift(130, count), x, factors, ROWS, state, *out)
    whole, wanted = state.astype(np.float64), np.zeros((count, TOKENS, 130))
    for first, tokens, old, new, *_ in ROWS:
        before = np.concatenate([whole[old], x[first : first + tokens]])
        now = before[1:]
        mixed = now + (before[:-1] - now) * factors[:, None]
        wanted[:, first : first + tokens], whole[new] = mixed, before[-1:]
    assert np.allclose(found[4:], wanted, rtol=1e-5, atol=1e-6)
    assert found[3].tobytes() == whole.astype(np.float32).tobytes()


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class Heads:
    """Random numbers of a layer, and what the formulas of the paper make of them (float64)."""

    def __init__(self, heads: int, size: int, *, is_first: bool) -> None:
        self.heads, self.size, width = heads, size, heads * size
        self.tokens = {
            name: normal(i, TOKENS, width)
            for i, name in enumerate(("r", "w", "k", "v", "a", "g", "b", "first"))
        }
        self.vectors = {
            name: normal(20 + i, width)
            for i, name in enumerate(("w0", "a0", "v0", "k_k", "k_a", "r_k", "norm", "bias"))
        }
        self.state = states(40, heads, size, size)
        wide = {name: one.astype(np.float64) for name, one in self.tokens.items()}
        own = {name: one.astype(np.float64) for name, one in self.vectors.items()}
        rate = sigmoid(wide["a"] + own["a0"])
        value = wide["v"]
        if not is_first:
            value = value + (wide["first"] - value) * sigmoid(wide["b"] + own["v0"])
        self.decay = self.by_head(np.exp(-math.exp(-0.5) * sigmoid(wide["w"] + own["w0"])))
        unit = self.by_head(wide["k"] * own["k_k"])
        self.unit = unit / np.sqrt((unit**2).sum(axis=2, keepdims=True))
        self.rate, self.value = self.by_head(rate), self.by_head(value)
        self.key = self.by_head(wide["k"] * (1 + (rate - 1) * own["k_a"]))
        self.query, self.gate = self.by_head(wide["r"]), wide["g"]
        self.r_k = own["r_k"].reshape(heads, size)
        self.of_norm = own["norm"], own["bias"]

    def by_head(self, x: Array) -> Array:
        return x.reshape(TOKENS, self.heads, self.size)

    def scanned(self) -> tuple[Array, Array]:
        """o, and the states behind the rows, by value and then by key."""
        o, whole = np.zeros((TOKENS, self.heads, self.size)), self.state.astype(np.float64)
        for first, count, old, new, *_ in ROWS:
            h = whole[old]
            for t in range(first, first + count):
                seen = (h * self.unit[t][:, None]).sum(axis=2)
                h = h * self.decay[t][:, None]
                h = h - seen[:, :, None] * (self.rate[t] * self.unit[t])[:, None]
                h = h + self.value[t][:, :, None] * self.key[t][:, None]
                o[t] = (h * self.query[t][:, None]).sum(axis=2)
            whole[new] = h
        return o.reshape(TOKENS, -1), whole

    def finished(self, o: Array) -> Array:
        x = self.by_head(o.astype(np.float64))
        x = x - x.mean(axis=2, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=2, keepdims=True) + EPS)
        own = (self.query * self.key * self.r_k).sum(axis=2, keepdims=True) * self.value
        weight, bias = self.of_norm
        return np.asarray(
            (x.reshape(TOKENS, -1) * weight + bias + own.reshape(TOKENS, -1)) * self.gate
        )

    def given(self, tokens: str, vectors: str, *, is_first: bool) -> list[Array]:
        unread = ("b", "first", "v0") if is_first else ()
        one = [self.tokens[name] for name in tokens.split() if name not in unread]
        return [*one, *(self.vectors[name] for name in vectors.split() if name not in unread)]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("heads", "size"), [(2, 64), (3, 40)])
def test_time_mixing(emulate: Emulator, heads: int, size: int, is_first: bool) -> None:
    one = Heads(heads, size, is_first=is_first)
    given = one.given("r w k v a b first", "w0 a0 v0 k_k k_a", is_first=is_first)
    out = np.zeros((TOKENS, heads * size), np.float32)
    kernel = wkv_scan(heads, size, is_first=is_first)
    *_, after, o = emulate(kernel, *given, ROWS, one.state, out)
    wanted, whole = one.scanned()
    assert np.allclose(o, wanted, rtol=1e-4, atol=1e-4)
    assert np.allclose(after, whole, rtol=1e-4, atol=1e-5)
    assert after[FREE].tobytes() == one.state[FREE].tobytes()
    given = one.given("r k v a g b first", "a0 v0 k_a r_k norm bias", is_first=is_first)
    found = emulate(wkv_finish(heads, size, EPS, is_first=is_first), *given, o)[-1]
    assert np.allclose(found, one.finished(o), rtol=1e-4, atol=1e-4)


def test_keys_of_nothing(emulate: Emulator) -> None:
    """Their length is 0, by which nothing is divided."""
    one = Heads(1, 32, is_first=True)
    one.tokens["k"][:] = 0
    given = one.given("r w k v a", "w0 a0 k_k k_a", is_first=True)
    out = np.zeros((TOKENS, 32), np.float32)
    *_, after, o = emulate(wkv_scan(1, 32, is_first=True), *given, ROWS, one.state, out)
    assert np.isfinite(after).all() and np.isfinite(o).all()
    assert not o[:3].any(), "the state of the first row stays empty"


def test_the_size_of_a_step_changes_no_bit(emulate: Emulator) -> None:
    one = Heads(2, 32, is_first=True)
    given = one.given("r w k v a", "w0 a0 k_k k_a", is_first=True)
    kernel, state = wkv_scan(2, 32, is_first=True), np.zeros((4, 2, 32, 32), np.float32)

    def run(rows: list[tuple[int, int, int, int]]) -> tuple[bytes, bytes]:
        out = np.zeros((TOKENS, 64), np.float32)
        *_, after, out = emulate(kernel, *given, state_rows(rows), state.copy(), out)
        return after[3].tobytes(), out.tobytes()

    assert run([(0, 9, 0, 3)]) == run([(0, 2, 0, 1), (2, 6, 1, 2), (8, 1, 2, 3)])


def test_machine_code() -> None:
    for count in (1, 6):
        check_code(token_shift(2560, count), {"LDG", "STG"})
    for is_first in (True, False):
        check_code(wkv_scan(40, 64, is_first=is_first), {"LDG", "STG", "SHFL"})
        check_code(wkv_finish(40, 64, EPS, is_first=is_first), {"LDG", "STG", "SHFL"})
    check_code(wkv_scan(8, 128, is_first=False), {"LDG", "STG", "SHFL"})
