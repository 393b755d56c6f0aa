"""Mixers that keep a state, in plain Relax around two plain kernels."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import Mamba2Vectors, Part, StateInputs
from mlc_llm.backends.reference.tensors import columns
from mlc_llm.kernels.reference_conv import causal_conv
from mlc_llm.kernels.reference_scan import selective_scan
from mlc_llm.models.recurrent import Mamba2Spec


def convolved(x: Tensor, weight: Tensor, rows: Tensor, state: Tensor) -> Tensor:
    """Each channel of x convolved with its weights, behind what the state keeps."""
    kernel = causal_conv(int(weight.shape[0]), int(weight.shape[1]))
    args, shapes = [x, weight, rows, state], [floats(state), floats(x)]
    _, y = op.tensor_ir_inplace_op(kernel, "causal_conv", args, [3, -1], shapes)
    return y


def mamba2(
    spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
) -> Tensor:
    """As `Ops.mamba2`."""
    inner, tokens = spec.inner, projected.shape[0]
    gate = columns(Part(projected), inner)
    mixed = columns(Part(projected, inner), spec.channels)
    mixed = convolved(mixed, vectors.conv, inputs.rows, inputs.states[0])
    mixed = op.silu(mixed + vectors.conv_bias)
    raw = columns(Part(projected, inner + spec.channels, vectors.dt_bias), spec.heads)
    dt = softplus(raw)
    decay = op.exp(dt * op.reshape(vectors.a, (spec.heads,)))
    x = op.reshape(columns(Part(mixed), inner), (tokens, spec.heads, spec.head_dim))
    width = 2 * spec.groups * spec.state
    bc = op.reshape(columns(Part(mixed, inner), width), (tokens, 2 * spec.groups, spec.state))
    kernel = selective_scan(spec.heads, spec.head_dim, spec.state, spec.groups)
    args, state = [x, dt, decay, bc, inputs.rows, inputs.states[1]], inputs.states[1]
    shapes = [floats(state), floats(x)]
    _, y = op.tensor_ir_inplace_op(kernel, "selective_scan", args, [5, -1], shapes)
    y = y + x * op.reshape(vectors.d, (spec.heads, 1))
    y = op.reshape(y, (tokens, inner)) * op.silu(gate)
    if vectors.norm is None:
        return y
    parts = op.reshape(y, (tokens, spec.groups, inner // spec.groups))
    mean = op.sum(parts * parts, axis=-1, keepdims=True) / float(inner // spec.groups)
    normed = parts / op.sqrt(mean + vectors.eps) * vectors.norm
    return op.reshape(normed, (tokens, inner))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|), by Kahan's way to take log1p."""
    size = op.maximum(x, op.negative(x))
    power = op.exp(op.negative(size))
    above = power + 1.0
    rest = op.where(op.equal(above, op.ones(x.shape)), power, op.log(above) * power / (above - 1.0))
    return op.maximum(x, op.zeros(x.shape)) + rest


def floats(x: Tensor) -> Tensor:
    """A placeholder of the same shape."""
    return Tensor.placeholder(list(x.shape), "float32")
