"""What becomes of a row before a product reads it: a norm, an activation, or nothing.

    "plain"         X[row, i]
    "norm"          X[row, i] * inverse * weight[i]                     inverse = 1 / sqrt(mean(x^2)
                                                                        + eps)
    "layer_norm"    (X[row, i] - mean) * inverse * weight[i] + bias[i]  inverse = 1 / sqrt(variance
                                                                        + eps)
    "silu", ...     act(X[row, i]) * X[row, k + i]
    "silu_biased"   act(X[row, i] + weight[i]) * (X[row, k + i] + bias[i])
    "silu_alone"    act(X[row, i]), and "silu_alone_biased": act(X[row, i] + weight[i])

"clamped_swiglu" is a function of both halves.

X       float32 [m, k], or [m, 2 k] where two halves are multiplied
weight  float32 [k]; kinds that read none get X again
bias    float32 [k]; only of kinds with two vectors
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import LOG2E, erf, exp2, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.types import Buffer, Expr, Index

Activation: TypeAlias = "Callable[[Expr, int], Expr]"


@dataclass(frozen=True)
class Kind:
    """What a kind reads, and what it computes."""

    norm: Literal["rms", "layer"] | None = None
    activation: str | None = None
    is_gated: bool = False
    is_biased: bool = False

    @property
    def vectors(self) -> int:
        """How many of `weight` and `bias` it reads."""
        return int(self.norm is not None or self.is_biased) + int(
            self.norm == "layer" or (self.is_biased and self.is_gated)
        )

    @property
    def statistics(self) -> int:
        """Numbers of a row that a norm finds first."""
        return 2 if self.norm == "layer" else 1

    @property
    def unread(self) -> tuple[str, ...]:
        """Arguments that its kernels do not have."""
        return () if self.vectors == 2 else ("BIAS",)


@dataclass(frozen=True, eq=False)
class Given:
    """The buffers that a row is made of."""

    x: Buffer
    weight: Buffer
    bias: Buffer


def _silu(gate: Expr, lanes: int) -> Expr:
    """x / (1 + e^-x); the exponent is bounded so that the denominator stays finite."""
    bounded = T.min(fsplat(0.0, lanes) - gate, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


def _gelu_tanh(gate: Expr, lanes: int) -> Expr:
    """x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3). This is x (1 + tanh u) / 2
    (Hendrycks and Gimpel 2016)."""
    cubic = gate * gate * gate * fsplat(0.044715, lanes) + gate
    wanted = cubic * fsplat(-2.0 * (2.0 / math.pi) ** 0.5, lanes)
    bounded = T.min(wanted, fsplat(87.0, lanes))
    return gate / (fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes))


def _gelu(gate: Expr, lanes: int) -> Expr:
    """x (1 + erf(x / sqrt(2))) / 2."""
    part = erf(gate * fsplat(0.5**0.5, lanes), lanes) + fsplat(1.0, lanes)
    return gate * fsplat(0.5, lanes) * part


def _clamped_swiglu(gate: Expr, up: Expr, lanes: int) -> Expr:
    """See `models.spec.Activation`. A NaN is the second of two operands, so that it stays."""
    gate = T.min(fsplat(7.0, lanes), gate)
    up = T.max(fsplat(-7.0, lanes), T.min(fsplat(7.0, lanes), up))
    bounded = T.min(gate * fsplat(-1.702, lanes), fsplat(87.0, lanes))
    sigmoid = fsplat(1.0, lanes) + exp2(bounded * fsplat(LOG2E, lanes), lanes)
    return gate / sigmoid * (up + fsplat(1.0, lanes))


CLAMPED = "clamped_swiglu"
ACTIVATIONS: dict[str, Activation] = {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu": _gelu}
"""Functions of one number."""


def _kinds() -> dict[str, Kind]:
    """All kinds by name."""
    found = {"plain": Kind(), "norm": Kind(norm="rms"), "layer_norm": Kind(norm="layer")}
    for name in (*ACTIVATIONS, CLAMPED):
        found[name] = Kind(activation=name, is_gated=True)
        found[f"{name}_biased"] = Kind(activation=name, is_gated=True, is_biased=True)
    for name in ACTIVATIONS:
        found[f"{name}_alone"] = Kind(activation=name)
        found[f"{name}_alone_biased"] = Kind(activation=name, is_biased=True)
    return found


KINDS = _kinds()


def input_width(kind: str, k: int) -> int:
    """Columns of X."""
    return 2 * k if KINDS[kind].is_gated else k


def weight_shape(kind: str, k: int, m: Index) -> tuple[Index, ...]:
    """Shape of the second argument."""
    return (k,) if KINDS[kind].vectors else (m, input_width(kind, k))


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
