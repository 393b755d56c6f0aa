"""RWKV-7, in plain Relax around two plain kernels."""

from __future__ import annotations

import math

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import Part, Rwkv7Parts, Rwkv7Vectors, StateInputs
from mlc_llm.backends.reference.recurrent import convolved, floats
from mlc_llm.backends.reference.tensors import columns
from mlc_llm.kernels.reference_wkv import wkv_scan
from mlc_llm.models.recurrent import Rwkv7Spec


def token_shift(x: Tensor, factors: Tensor, inputs: StateInputs) -> list[Tensor]:
    """As `Ops.token_shift`."""
    count, width = (int(size) for size in factors.shape)
    of_last = op.concat([op.ones((width, 1)), op.zeros((width, 1))], 1)
    change = convolved(x, of_last, inputs.rows, inputs.states[0]) - x
    rows = op.split(factors, count, axis=0) if count > 1 else (factors,)
    return [x + change * op.reshape(one, (width,)) for one in rows]


def rwkv7(spec: Rwkv7Spec, parts: Rwkv7Parts, vectors: Rwkv7Vectors, inputs: StateInputs) -> Tensor:
    """As `Ops.rwkv7`."""
    tokens, shape = parts.r.shape[0], (parts.r.shape[0], spec.heads, spec.head_dim)

    def by_head(x: Tensor) -> Tensor:
        return op.reshape(columns(Part(x), spec.width), shape)

    decay = op.exp(op.sigmoid(parts.w + vectors.w0) * -math.exp(-0.5))
    rate = op.sigmoid(parts.a + vectors.a0)
    value = parts.v
    if parts.b is not None:
        value = value + (parts.first - value) * op.sigmoid(parts.b + vectors.v0)
    u = by_head(parts.k * vectors.k_k)
    length = op.sqrt(op.sum(u * u, axis=-1, keepdims=True))
    u = u / op.maximum(length, op.full(length.shape, 1e-12))
    key = parts.k * ((rate - 1.0) * vectors.k_a + 1.0)
    r, v, k = by_head(parts.r), by_head(value), by_head(key)
    args = [r, by_head(decay), k, v, u, by_head(rate), inputs.rows, inputs.states[0]]
    shapes = [floats(inputs.states[0]), floats(r)]
    kernel = wkv_scan(spec.heads, spec.head_dim)
    _, o = op.tensor_ir_inplace_op(kernel, "wkv_scan", args, [7, -1], shapes)
    own = op.sum(r * k * op.reshape(vectors.r_k, shape[1:]), axis=-1, keepdims=True) * v
    o = op.reshape(_normed(spec, o), (tokens, spec.width)) * vectors.norm + vectors.norm_bias
    return (o + op.reshape(own, (tokens, spec.width))) * columns(Part(parts.g), spec.width)


def _normed(spec: Rwkv7Spec, o: Tensor) -> Tensor:
    """Each head with the mean 0 and the variance 1."""
    size = float(spec.head_dim)
    centred = o - op.sum(o, axis=-1, keepdims=True) / size
    variance = op.sum(centred * centred, axis=-1, keepdims=True) / size
    return centred / op.sqrt(variance + spec.eps)
