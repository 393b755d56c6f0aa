"""The functions between the matrices of a feed-forward network."""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.models.network_spec import Activation

LIMIT, STEEPNESS = 7.0, 1.702
"""Of the clamped SwiGLU."""


def gated(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, or the clamped SwiGLU of both."""
    if activation == "clamped_swiglu":
        gate, up = _clamped(gate, -1e30), _clamped(up, -LIMIT)
        return gate * op.sigmoid(gate * STEEPNESS) * (up + 1.0)
    return activated(activation, gate) * up


def activated(activation: Activation, x: Tensor) -> Tensor:
    """An activation that is a function of the gate alone."""
    assert activation != "clamped_swiglu", "a function of two numbers"
    if activation == "silu":
        return op.silu(x)
    if activation == "sigmoid":
        return op.sigmoid(x)
    if activation == "tanh":
        return op.tanh(x)
    if activation == "squared_relu":
        return op.square(op.relu(x))
    return op.gelu(x, approximate="tanh" if activation == "gelu_tanh" else None)


def _clamped(x: Tensor, least: float) -> Tensor:
    """min(max(x, least), LIMIT)."""
    return nn.wrap_nested(relax.op.clip(x._expr, least, LIMIT), "clamped")
