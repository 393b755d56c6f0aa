"""What becomes of a row before a product reads it (`kernels/row_kinds.py`), in vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    exp2,
    fsplat,
    lanes_at,
    normal_tail,
    reduce_sum,
    splat,
    tanh,
)
from mlc_llm.kernels.row_kinds import CLAMPED, KINDS, Given
from mlc_llm.kernels.types import Buffer, Expr, Index

Activation: TypeAlias = "Callable[[Expr, int], Expr]"


def silu(gate: Expr, lanes: int) -> Expr:
    """x / (1 + e^-x); the exponent is bounded so that the denominator stays finite."""
    bounded = T.min(fsplat(0.0, lanes) - gate, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


def _sigmoid(gate: Expr, lanes: int) -> Expr:
    """1 / (1 + e^-x) = (1 + tanh(x / 2)) / 2, in which a NaN stays."""
    half = fsplat(0.5, lanes)
    return half + half * tanh(gate * half, lanes)


def _gelu_tanh(gate: Expr, lanes: int) -> Expr:
    """x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3). This is x (1 + tanh u) / 2
    (Hendrycks and Gimpel 2016)."""
    cubic = gate * gate * gate * fsplat(0.044715, lanes) + gate
    wanted = cubic * fsplat(-2.0 * (2.0 / math.pi) ** 0.5, lanes)
    bounded = T.min(wanted, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


def _gelu(gate: Expr, lanes: int) -> Expr:
    """x (1 + erf(x / sqrt(2))) / 2: what is above 0, less what a normal tail takes off. From 30 on
    nothing is left of the tail. A NaN is the second of two operands, so that it stays."""
    size = T.min(T.abs(gate), fsplat(30.0, lanes))
    return T.max(fsplat(0.0, lanes), gate) - size * normal_tail(size, lanes)


def _clamped_swiglu(gate: Expr, up: Expr, lanes: int) -> Expr:
    """See `network_spec.Activation`. A NaN is the second of two operands, so that it stays."""
    gate = T.min(fsplat(7.0, lanes), gate)
    up = T.max(fsplat(-7.0, lanes), T.min(fsplat(7.0, lanes), up))
    bounded = T.min(gate * fsplat(-1.702, lanes), fsplat(87.0, lanes))
    sigmoid = fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes)
    return gate / sigmoid * (up + fsplat(1.0, lanes))


def _squared_relu(x: Expr, lanes: int) -> Expr:
    """max(x, 0)^2; a NaN is the second of two operands, so that it stays."""
    above = T.max(fsplat(0.0, lanes), x)
    return above * above


ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "gelu_tanh": _gelu_tanh,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "tanh": tanh,
    "squared_relu": _squared_relu,
}
"""Functions of one number."""


@T.inline
def inverse_rms(X, row, k, eps, inv):
    """inv[0] = 1 / sqrt(mean(x^2) + eps), summed in a fixed order."""
    squares = T.alloc_buffer((8,), "float32")
    squares[lanes_at(0, 8)] = fsplat(0.0, 8)
    for i in T.serial(k // 8):
        squares[lanes_at(0, 8)] = (
            squares[lanes_at(0, 8)] + X[row, lanes_at(i * 8, 8)] * X[row, lanes_at(i * 8, 8)]
        )
    inv[0] = T.float32(1) / T.sqrt(reduce_sum(squares, 8) / T.float32(k) + T.float32(eps))


@T.inline
def inverse_deviation(X, row, k, eps, inv):
    """inv[0] = 1 / sqrt(variance + eps), inv[1] = the mean."""
    sums = T.alloc_buffer((8,), "float32")
    sums[lanes_at(0, 8)] = fsplat(0.0, 8)
    for i in T.serial(k // 8):
        sums[lanes_at(0, 8)] = sums[lanes_at(0, 8)] + X[row, lanes_at(i * 8, 8)]
    inv[1] = reduce_sum(sums, 8) / T.float32(k)
    sums[lanes_at(0, 8)] = fsplat(0.0, 8)
    for i in T.serial(k // 8):
        sums[lanes_at(0, 8)] = sums[lanes_at(0, 8)] + (
            X[row, lanes_at(i * 8, 8)] - splat(inv[1], 8)
        ) * (X[row, lanes_at(i * 8, 8)] - splat(inv[1], 8))
    inv[0] = T.float32(1) / T.sqrt(reduce_sum(sums, 8) / T.float32(k) + T.float32(eps))


@T.inline
def find_statistics(kind, X, row, k, eps, inv):
    """What a norm needs to know of a row: inv[0] is the inverse, inv[1] the mean of a layer norm,
    summed in a fixed order. Other kinds need nothing."""
    if KINDS[kind].norm == "rms":
        inverse_rms(X, row, k, eps, inv)
    if KINDS[kind].norm == "layer":
        inverse_deviation(X, row, k, eps, inv)


def load(
    kind: str, given: Given, row: Index, column: Index, k: int, inv: Buffer, lanes: int
) -> Expr:
    """`lanes` elements of what becomes of a row; inv: as of `find_statistics`."""
    which, at = KINDS[kind], lanes_at(column, lanes)
    x = given.x[row, at]
    if which.norm == "rms":
        return x * splat(inv[0], lanes) * given.weight[at]
    if which.norm == "layer":
        return (x - splat(inv[1], lanes)) * splat(inv[0], lanes) * given.weight[at] + given.bias[at]
    if which.activation is None:
        return x
    gate = x + given.weight[at] if which.is_biased else x
    if not which.is_gated:
        return ACTIVATIONS[which.activation](gate, lanes)
    up = given.x[row, lanes_at(column + k, lanes)]
    up = up + given.bias[at] if which.is_biased else up
    if which.activation == CLAMPED:
        return _clamped_swiglu(gate, up, lanes)
    return ACTIVATIONS[which.activation](gate, lanes) * up
