"""Functions of pairs of bfloat16 against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from kernel_tools import build
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import VNNI_BF16
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.kernels.cpu import bf16_pairs
from mlc_llm.kernels.cpu.bf16_pairs import L, imported, neighbours
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at

pytestmark = pytest.mark.skipif(
    bool(missing_features(VNNI_BF16.name)), reason="no AVX-512 BF16 here"
)
COUNT = 64 * L


def powers() -> tvm.tirx.PrimFunc:
    """Kernel of (X, Y), float32 [COUNT]: Y = 2**X."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(X: T.Buffer((COUNT,), "float32"), Y: T.Buffer((COUNT,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for i in T.serial(COUNT // L):
                Y[lanes_at(i * L, L)] = bf16_pairs.power(X[lanes_at(i * L, L)])

    return kernel


def products() -> tvm.tirx.PrimFunc:
    """Kernel of (X, W, Y), float32 [32], [32] and [16]: lane i of Y is the sum of the products of
    numbers 2 i and 2 i + 1 of X with the first two of W, and 1."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        X: T.Buffer((2 * L,), "float32"),
        W: T.Buffer((2 * L,), "float32"),
        Y: T.Buffer((L,), "float32"),
    ):
        T.func_attr(SCHEDULED)
        with T.sblock("root"), imported(True):
            words = T.alloc_buffer((L,), "float32")
            words[lanes_at(0, L)] = neighbours(W[lanes_at(0, L)], W[lanes_at(L, L)])
            Y[lanes_at(0, L)] = bf16_pairs.dot(
                T.broadcast(T.float32(1), L),
                T.reinterpret(neighbours(X[lanes_at(0, L)], X[lanes_at(L, L)]), dtype=f"int32x{L}"),
                words[0],
            )

    return kernel


def test_powers() -> None:
    x = np.random.default_rng(0).uniform(-126, 0, COUNT).astype(np.float32)
    x[:5] = 0, -1, -126, -1e30, np.nan
    y = np.zeros_like(x)
    build(VNNI_BF16, powers)(x, y)
    assert y[0] == 1 and y[1] == 0.5 and y[3] == 0 and np.isnan(y[4])
    finite = [*range(3), *range(5, COUNT)]
    assert np.abs(y[finite] / np.exp2(x[finite].astype(np.float64)) - 1).max() < 1.1e-4


def test_products() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 2 * L)).astype(np.float32)
    y = np.zeros(L, np.float32)
    build(VNNI_BF16, products)(x, w, y)
    terms = x.astype(np.float64).reshape(L, 2) * w[:2]
    bound = 2.0**-7 * np.abs(terms).sum(axis=1) + 2.0**-22
    assert (np.abs(y - 1 - terms.sum(axis=1)) <= bound).all()
    assert (y != (1 + terms.sum(axis=1)).astype(np.float32)).any()
