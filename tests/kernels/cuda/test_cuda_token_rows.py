"""What happens to the rows of single tokens on a GPU, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from plane_tools import as_planes

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.cuda.adapters import adapter_down, adapter_up
from mlc_llm.kernels.cuda.head_norm import heads_apart
from mlc_llm.kernels.cuda.kv_pages import LOG2E, rotate_queries
from mlc_llm.kernels.cuda.token_rows import keep, kept, put_rows, token_gate, token_inputs
from mlc_llm.kernels.heads import Heads

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_rows_are_put_where_they_belong(emulate: Emulator) -> None:
    x, rows, at = normal(0, 5, 40), normal(1, 3, 40), np.array([4, -1, 0], np.int32)
    wanted = x.copy()
    wanted[[4, 0]] = rows[[0, 2]]
    assert (emulate(put_rows(40), at, rows, x.copy())[-1] == wanted).all()


def test_a_gate_of_tokens(emulate: Emulator) -> None:
    x, weight, y = normal(0, 3, 96), normal(1, 96), normal(2, 3, 64)
    found = emulate(token_gate(96, 64), as_planes(x), weight, y.copy())[-1]
    gate = 1 / (1 + np.exp(-(x.astype(np.float64) @ weight)))
    assert np.allclose(found, gate[:, None] * y, rtol=1e-5, atol=1e-6)


def test_inputs_of_layers_by_token(emulate: Emulator) -> None:
    context, weight, x = normal(0, 3, 3 * 40 + 8), normal(1, 40), normal(2, 3, 3 * 40)
    found = emulate(token_inputs(3, 40, 128, 1e-6), context, weight, x.copy())[-1]
    parts = context[:, :120].reshape(3, 3, 40).astype(np.float64)
    parts = parts / np.sqrt((parts**2).mean(axis=2, keepdims=True) + 1e-6) * weight
    assert np.allclose(found, (x + parts.reshape(3, 120)) * 0.5**0.5, rtol=1e-5, atol=1e-6)


def test_vectors_in_pages(emulate: Emulator) -> None:
    x, slot = normal(0, 3, 50), np.array([PAGE + 3, 0, 5], np.int32)
    pages = np.zeros((2, 2, 2, PAGE * 8), np.float16)
    pages = emulate(keep(2, 8, 50, 20, 30), x, slot, pages)[-1]
    asked, y = np.array([5, -1, PAGE + 3], np.int32), np.full((3, 50), 7, np.float32)
    found = emulate(kept(2, 8, 50, 20, 30), pages, asked, y)[-1]
    wanted = x.astype(np.float16).astype(np.float32)
    assert (found[:, :20] == 7).all() and not found[1, 20:].any()
    assert (found[[0, 2], 20:] == wanted[[2, 0], 20:]).all()


def test_adapters(emulate: Emulator) -> None:
    """The second token has none, the third one whose second number of the rank is not used."""
    k, widths, rank = 96, (40, 24), 8
    x, down, up = normal(0, 4, k), normal(1, 2, 2, rank, k), normal(2, 2, rank, 64)
    slots, ranks = np.array([0, -1, 1, 0], np.int32), np.array([8, 1], np.int32)
    small, y = np.full((4, 2, rank), np.nan, np.float32), normal(3, 4, 64)
    tables = (ranks, slots)
    small = emulate(adapter_down(k, 2), as_planes(x), down, *tables, small)[-1]
    blocks = np.ascontiguousarray(up.reshape(2, rank, -1, 8).swapaxes(1, 2))
    found = emulate(adapter_up(64, widths), small, blocks, *tables, y.copy())[-1]
    wanted = y.astype(np.float64)
    for t, slot in enumerate(slots):
        for part, own in ((0, slice(0, 40)), (1, slice(40, 64))) if slot >= 0 else ():
            used = slice(0, ranks[slot])
            between = down[slot, part, used].astype(np.float64) @ x[t]
            wanted[t, own] += between @ up[slot, used, own]
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert found[1].tobytes() == y[1].tobytes()


@pytest.mark.parametrize("eps", [None, 1e-5])
def test_values_apart(emulate: Emulator, eps: float | None) -> None:
    x = normal(0, 3, 100)
    found = emulate(heads_apart(100, 10, 2, 40, eps), x, np.zeros((3, 80), np.float32))[-1]
    heads = x[:, 10:90].reshape(3, 2, 40).astype(np.float64)
    if eps is not None:
        heads = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + eps)
    assert np.allclose(found, heads.reshape(3, 80), rtol=1e-6, atol=1e-6)


def test_queries_alone_turn(emulate: Emulator) -> None:
    sizes = Heads(2, 1, 16, "float16", 0.5, 16)
    q, bias, position = normal(0, 2, 40), normal(1, 32), np.array([3, 1], np.int32)
    angles = np.random.default_rng(2).uniform(0, 7, (5, 8))
    rope = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    out = np.zeros((2, 32), np.float32)
    found = emulate(rotate_queries(sizes, 40, 8, has_bias=True), q, bias, rope, position, out)[-1]
    x = (q[:, 8:] + bias).reshape(2, 2, 16).astype(np.float64)
    cos, sin = (rope[position, i][:, None] for i in range(2))
    low, high = x[..., :8], x[..., 8:]
    turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)
    assert np.allclose(found, turned.reshape(2, 32) * 0.5 * LOG2E, rtol=1e-5, atol=1e-6)


def test_machine_code() -> None:
    wanted = {"LDG", "STG"}
    check_code(put_rows(2048), wanted)
    check_code(token_gate(2048, 2048), {*wanted, "SHFL"})
    check_code(token_inputs(30, 256, 7680, 1e-6), {*wanted, "SHFL"})
    check_code(keep(8, 128, 4096, 2048, 2048), wanted)
    check_code(kept(8, 128, 4096, 2048, 2048), wanted)
    check_code(adapter_down(4096, 3), {*wanted, "SHFL"})
    check_code(adapter_up(6144, (4096, 1024, 1024)), wanted)
    check_code(heads_apart(6144, 5120, 8, 128, 1e-6), {*wanted, "SHFL"})
    check_code(rotate_queries(Heads(32, 8, 128, "float16", 0.1, 128), 4096, 0), wanted)
