"""The gated delta rule, as calls of CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor, like
from mlc_llm.backends.operands import GatedDeltaVectors, Part, StateInputs
from mlc_llm.kernels.cpu.delta_rule import (
    READS,
    DeltaShape,
    delta_keys,
    delta_scan,
    normed_gate,
)
from mlc_llm.kernels.cpu.silu_conv import conv_silu
from mlc_llm.library.state_format import CHUNK
from mlc_llm.models.recurrent import GatedDeltaSpec


def gated_delta(
    spec: GatedDeltaSpec,
    parts: Sequence[Part],
    vectors: GatedDeltaVectors,
    inputs: StateInputs,
    scratch: Scratch,
    isa: Isa,
) -> Tensor:
    """As `Ops.gated_delta`."""
    qkv, z, a, b = parts
    convs, keys, changes, numbers, bases = inputs.states
    mixed = float_tensor(qkv.tensor.shape[0], spec.channels)
    kernel = conv_silu(spec.channels, spec.kernel, _columns(qkv), qkv.start, has_bias=False)
    args = [qkv.tensor, vectors.conv, inputs.rows, convs, scratch.tensor(mixed.shape)]
    _, mixed = op.tensor_ir_inplace_op(kernel, "conv_silu", args, [3, 4], [like(convs), mixed])
    shape = DeltaShape(
        spec.key_heads, spec.key_dim, spec.heads, spec.head_dim, spec.in_turn,
        (_columns(a), a.start), (_columns(b), b.start), isa.lanes,
    )  # fmt: skip
    units = float_tensor(mixed.shape[0], spec.key_heads, READS, spec.key_dim)
    dots = float_tensor(mixed.shape[0], spec.key_heads, READS, CHUNK)
    args = [mixed, inputs.rows, keys, scratch.tensor(units.shape), scratch.tensor(dots.shape)]
    shapes = [like(keys), units, dots]
    keys, units, dots = op.tensor_ir_inplace_op(
        delta_keys(shape), "delta_keys", args, [2, 3, 4], shapes
    )
    out = float_tensor(mixed.shape[0], spec.inner)
    args = [mixed, a.tensor, b.tensor, vectors.dt_bias, vectors.decay, inputs.rows, keys, units]
    args += [dots, changes, numbers, bases, scratch.tensor(out.shape)]
    shapes = [like(changes), like(numbers), like(bases), out]
    *_, o = op.tensor_ir_inplace_op(delta_scan(shape), "delta_scan", args, [9, 10, 11, 12], shapes)
    kernel = normed_gate(spec.heads, spec.head_dim, _columns(z), z.start, vectors.eps)
    return op.tensor_ir_inplace_op(kernel, "normed_gate", [z.tensor, vectors.norm, o], 2, out)


def _columns(part: Part) -> int:
    return int(part.tensor.shape[1])
