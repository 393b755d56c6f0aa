"""The gated delta rule, in plain Relax around two plain kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import GatedDeltaVectors, Part, StateInputs
from mlc_llm.backends.reference.recurrent import convolved, floats, softplus
from mlc_llm.backends.reference.tensors import columns
from mlc_llm.kernels.reference_delta import delta_scan
from mlc_llm.models.recurrent import GatedDeltaSpec

SMALLEST = 1e-6
"""Added to the sum of squares of a head."""


def gated_delta(
    spec: GatedDeltaSpec, parts: Sequence[Part], vectors: GatedDeltaVectors, inputs: StateInputs
) -> Tensor:
    """As `Ops.gated_delta`."""
    qkv, z, a, b = (columns(p, w) for p, w in zip(parts, spec.parts.values(), strict=True))
    tokens, inner = qkv.shape[0], spec.inner
    mixed = op.silu(convolved(qkv, vectors.conv, inputs.rows, inputs.states[0]))
    both = (tokens, 2, spec.key_heads, spec.key_dim)
    qk = op.reshape(columns(Part(mixed), 2 * spec.keys), both)
    qk = qk / op.sqrt(op.sum(qk * qk, axis=-1, keepdims=True) + SMALLEST)
    v = columns(Part(mixed, 2 * spec.keys), inner)
    v = op.reshape(v, (tokens, spec.heads, spec.head_dim))
    decay = op.exp(softplus(a + vectors.dt_bias) * vectors.decay)
    o = _scanned(spec, [qk, v, decay, op.sigmoid(b), inputs.rows], inputs.states[1])
    o = o * spec.key_dim**-0.5
    mean = op.sum(o * o, axis=-1, keepdims=True) / float(spec.head_dim)
    normed = o / op.sqrt(mean + vectors.eps) * vectors.norm
    return op.reshape(normed, (tokens, inner)) * op.silu(z)


def _scanned(spec: GatedDeltaSpec, args: list[Tensor], state: Tensor) -> Tensor:
    kernel = delta_scan(spec.key_heads, spec.key_dim, spec.heads, spec.head_dim, spec.in_turn)
    shapes = [floats(state), floats(args[1])]
    _, o = op.tensor_ir_inplace_op(kernel, "delta_scan", [*args, state], [5, -1], shapes)
    return o
