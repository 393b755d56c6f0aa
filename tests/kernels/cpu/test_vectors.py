"""Vector expressions, against float64."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import tvm
from kernel_tools import build, each_isa
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.input_kinds import ACTIVATIONS
from mlc_llm.kernels.cpu.vectors import (
    SCHEDULED,
    exp2,
    lanes_at,
    maxima,
    normal_tail,
    reduce_max,
    reduce_sum,
    tanh,
)

N, L = 1 << 16, 8


@cache
def exp2_of_all() -> tvm.tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(X: T.Buffer((N,), "float32"), Y: T.Buffer((N,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for i in T.serial(N // L):
                Y[lanes_at(i * L, L)] = exp2(X[lanes_at(i * L, L)], L)

    return func


@cache
def bounded_of_all(name: str) -> tvm.tirx.PrimFunc:
    function = {"tanh": tanh, "normal_tail": normal_tail, **ACTIVATIONS}[name]

    @T.prim_func(private=True, s_tir=True)
    def func(X: T.Buffer((N,), "float32"), Y: T.Buffer((N,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for i in T.serial(N // L):
                Y[lanes_at(i * L, L)] = function(X[lanes_at(i * L, L)], L)

    return func


@cache
def folds() -> tvm.tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(X: T.Buffer((11,), "float32"), Y: T.Buffer((2,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            Y[0] = reduce_max(X, 11)
            Y[1] = reduce_sum(X, 11)

    return func


@cache
def block_maxima(block: int) -> tvm.tirx.PrimFunc:
    lanes, blocks = 64, 64 // block

    @T.prim_func(private=True, s_tir=True)
    def func(X: T.Buffer((lanes,), "int32"), Y: T.Buffer((blocks,), "int32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            Y[lanes_at(0, blocks)] = maxima(X[lanes_at(0, lanes)], lanes, block)

    return func


@pytest.mark.parametrize("block", [4, 8, 16])
@each_isa()
def test_maxima_of_blocks(isa: Isa, block: int) -> None:
    x = np.random.default_rng(2).integers(-(2**31), 2**31, 64).astype(np.int32)
    y = np.zeros(64 // block, np.int32)
    build(isa, block_maxima, block)(x, y)
    assert y.tolist() == x.reshape(-1, block).max(axis=1).tolist()


@each_isa()
def test_exp2(isa: Isa) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-126, 127, N).astype(np.float32)
    x[: N // 2] = rng.uniform(-2, 2, N // 2)
    x[:5] = 0, 1, -126, 127, 0.5
    y = np.zeros_like(x)
    build(isa, exp2_of_all)(x, y)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(y / exact - 1) <= 3e-7).all()
    assert (y[:4] == exact[:4]).all()


@each_isa()
def test_normal_tail(isa: Isa) -> None:
    x = np.random.default_rng(1).uniform(0, 12, N).astype(np.float32)
    x[:4] = 0, 1e-20, 30, 1e4
    y = np.full_like(x, np.nan)
    build(isa, bounded_of_all, "normal_tail")(x, y)
    exact = np.array([math.erfc(float(one) / math.sqrt(2)) / 2 for one in x])
    assert (np.abs(y - exact) <= 3e-7).all()
    assert (y[2:4] <= 1e-30).all()


@each_isa()
def test_gelu(isa: Isa) -> None:
    x = np.random.default_rng(1).uniform(-12, 12, N).astype(np.float32)
    x[:8] = 0, 1e-20, -1e-20, 1e30, -1e30, np.inf, -np.inf, np.nan
    y = np.full_like(x, np.nan)
    build(isa, bounded_of_all, "gelu")(x, y)
    assert np.isnan(y[7]) and y[5] == np.inf and abs(y[6]) <= 1e-30
    exact = np.array([float(one) * math.erfc(-float(one) / math.sqrt(2)) / 2 for one in x[8:]])
    assert (np.abs(y[8:] - exact) <= np.minimum(5e-7, 7e-7 * np.abs(x[8:]))).all()
    assert y[0] == 0 and (y[1:3] == x[1:3] / 2).all() and y[3] == x[3] and abs(y[4]) <= 1e-30


@each_isa()
def test_tanh(isa: Isa) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-12, 12, N // 2), rng.uniform(-0.7, 0.7, N - N // 2)])
    x = x.astype(np.float32)
    x[:8] = 0, 1e-20, -1e-20, 1e30, -1e30, np.inf, -np.inf, np.nan
    y = np.zeros_like(x)
    build(isa, bounded_of_all, "tanh")(x, y)
    exact = np.array([math.tanh(float(one)) for one in x])
    assert np.isnan(y[7])
    y[7] = exact[7] = 0
    assert (np.abs(y - exact) <= 3e-7 * np.abs(exact)).all()


@each_isa()
def test_exp2_of_far_below(isa: Isa) -> None:
    """Masked scores are -1e30: the result must be finite and tiny, not a wrapped exponent."""
    x = np.full(N, -1e30, np.float32)
    x[::2] = -np.inf
    y = np.ones_like(x)
    build(isa, exp2_of_all)(x, y)
    assert (y == np.float32(2.0**-126)).all()


@each_isa()
def test_folds_of_a_length_that_is_no_power_of_two(isa: Isa) -> None:
    x = np.arange(11, dtype=np.float32)
    x[5] = 100
    y = np.zeros(2, np.float32)
    build(isa, folds)(x, y)
    assert y.tolist() == [100, x.sum()]
