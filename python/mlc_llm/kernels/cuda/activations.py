"""Activations, of one number in a thread."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm.script import tirx as T

from mlc_llm.kernels.row_kinds import CLAMPED, KINDS
from mlc_llm.kernels.types import Expr


def _sigmoid_of(factor: Expr) -> Expr:
    """1 + e^-x; the exponent is bounded so that it stays finite."""
    return T.float32(1) + T.exp(T.min(T.float32(0) - factor, T.float32(87)))


def _silu(gate: Expr) -> Expr:
    return gate / _sigmoid_of(gate)


def _gelu_tanh(gate: Expr) -> Expr:
    """x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3). This is x (1 + tanh u) / 2
    (Hendrycks and Gimpel 2016)."""
    cubic = gate * gate * gate * T.float32(0.044715) + gate
    return gate / _sigmoid_of(cubic * T.float32(2.0 * (2.0 / math.pi) ** 0.5))


def _gelu(gate: Expr) -> Expr:
    """x (1 + erf(x / sqrt(2))) / 2."""
    return gate * T.float32(0.5) * (T.erf(gate * T.float32(0.5**0.5)) + T.float32(1))


def _clamped_swiglu(gate: Expr, up: Expr) -> Expr:
    """See `network_spec.Activation`. A NaN is the second of two operands, so that it stays."""
    gate = T.min(T.float32(7), gate)
    up = T.max(T.float32(-7), T.min(T.float32(7), up))
    return gate / _sigmoid_of(gate * T.float32(1.702)) * (up + T.float32(1))


def sigmoid(gate: Expr) -> Expr:
    """1 / (1 + e^-x), in which a NaN stays."""
    return T.float32(1) / (T.float32(1) + T.exp(T.float32(0) - gate))


def _squared_relu(x: Expr) -> Expr:
    """max(x, 0)^2, in which a NaN stays."""
    above = T.max(T.float32(0), x)
    return above * above


_ALONE: dict[str, Callable[[Expr], Expr]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "gelu": _gelu,
    "sigmoid": sigmoid,
    "tanh": T.tanh,
    "squared_relu": _squared_relu,
}


def activated(kind: str, gate: Expr, up: Expr | None) -> Expr:
    """What a kind of rows with an activation makes of a number, or of one of each half."""
    name = KINDS[kind].activation
    assert name is not None
    if up is None:
        return _ALONE[name](gate)
    return _clamped_swiglu(gate, up) if name == CLAMPED else _ALONE[name](gate) * up
