"""Norms and activations of a GPU: their CUDA source on the emulator, and its machine code."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from plane_tools import numbers_of, scales_of, sums_of

from mlc_llm.kernels.cuda.activation import prepare
from mlc_llm.kernels.cuda.planes import SUMMED, row_words
from mlc_llm.kernels.row_kinds import KINDS, input_width

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]
EPS = 1e-5
ROWS = 3


def silu(x: Array) -> Array:
    return x / (1 + np.exp(np.minimum(-x, 700)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(np.minimum(-x, 700)))


ALONE: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}


def wanted(name: str, x: Array, weight: Array, bias: Array, k: int) -> Array:
    """What a kind makes of rows, in float64."""
    kind, x = KINDS[name], x.astype(np.float64)
    if kind.norm == "layer":
        x = x - x.mean(axis=1, keepdims=True)
    if kind.norm is not None:
        normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * weight
        return normed + bias if kind.norm == "layer" else normed
    if kind.activation is None:
        return x
    gate = x[:, :k] + (weight if kind.is_biased else 0)
    if not kind.is_gated:
        return ALONE[kind.activation](gate)
    up = x[:, k:] + (bias if kind.is_biased else 0)
    if kind.activation in ALONE:
        return ALONE[kind.activation](gate) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return silu(1.702 * gate) / 1.702 * (up + 1)


def prepared(emulate: Emulator, name: str, x: Array, weight: Array, bias: Array) -> Array:
    """The rows that the kernel makes."""
    kind, k = KINDS[name], x.shape[1] // (2 if KINDS[name].is_gated else 1)
    rows = np.zeros((len(x), row_words(k)), np.uint32)
    given = [x, weight if kind.vectors else x, *([bias] if kind.vectors == 2 else [])]
    return emulate(prepare(name, k, EPS), *given, rows)[-1]


@pytest.mark.parametrize(
    ("name", "k"), [*((name, 96) for name in KINDS), ("layer_norm", 2080), ("silu", 2080)]
)
def test_rows_are_the_nearest_planes(emulate: Emulator, name: str, k: int) -> None:
    random = np.random.default_rng(k)
    x = random.normal(size=(ROWS, input_width(name, k))).astype(np.float32) * 4
    x[1] *= np.float32(1e4)
    weight, bias = random.normal(size=(2, k)).astype(np.float32)
    rows = prepared(emulate, name, x, weight, bias)
    expected = wanted(name, x, weight, bias, k)
    size = np.abs(expected).max(axis=1, keepdims=True)
    scales = scales_of(rows, k)
    assert ((size / scales >= 2**14 * (1 - 1e-6)) & (size / scales < 2**15 * (1 + 1e-6))).all()
    # Rounded to planes, and in a few operations of float32 before.
    allowed = 2.0**-22 * np.abs(expected) + 4e-6 * np.abs(expected) + 2e-7 * size
    assert (np.abs(numbers_of(rows, k) - expected) <= allowed).all()
    groups = expected.reshape(ROWS, -1, SUMMED)
    near = 4e-6 * np.abs(groups).sum(axis=2) + 1e-6 * size
    assert (np.abs(sums_of(rows, k) - groups.sum(axis=2)) <= near).all()


def test_rows_of_zeros_and_of_tiny_and_huge_numbers(emulate: Emulator) -> None:
    x = np.zeros((4, 32), np.float32)
    x[1, 3], x[2], x[3, 7] = 1e-36, 3e38, np.inf
    rows = prepared(emulate, "plain", x, x, x)
    found = numbers_of(rows, 32)
    assert not found[0].any()
    assert np.allclose(found[1:3], x[1:3], rtol=1e-5, atol=0)
    assert not np.isfinite(found[3, 7])


@pytest.mark.parametrize("name", ["norm", "layer_norm", "silu", "gelu_biased"])
@pytest.mark.parametrize("k", [576, 14336])
def test_machine_code(name: str, k: int) -> None:
    check_code(prepare(name, k, EPS), wanted={"LDG", "STG", "SHFL"})
