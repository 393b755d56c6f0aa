"""Mixers that keep a state, as calls of CPU kernels."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor, like
from mlc_llm.backends.operands import Mamba2Vectors, StateInputs
from mlc_llm.kernels.cpu.short_conv import short_conv
from mlc_llm.kernels.cpu.silu_conv import conv_silu
from mlc_llm.kernels.cpu.state_space import SpaceShape, gated_norm, scan, space_keys
from mlc_llm.library.state_format import CHUNK
from mlc_llm.models.recurrent import Mamba2Spec, ShortConvSpec


def convolved_thirds(
    spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs, scratch: Scratch
) -> Tensor:
    """As `Ops.short_conv`."""
    out, state = float_tensor(thirds.shape[0], spec.width), inputs.states[0]
    args = [thirds, weight, inputs.rows, state, scratch.tensor(out.shape)]
    kernel, shapes = short_conv(spec.width, spec.kernel), [like(state), out]
    _, y = op.tensor_ir_inplace_op(kernel, "short_conv", args, [3, 4], shapes)
    return y


def mamba2(
    spec: Mamba2Spec,
    projected: Tensor,
    vectors: Mamba2Vectors,
    inputs: StateInputs,
    scratch: Scratch,
    isa: Isa,
) -> Tensor:
    """As `Ops.mamba2`; v alone if there is no norm."""
    tokens, columns = projected.shape[0], int(projected.shape[1])
    convs, keys, changes, numbers, bases = inputs.states
    mixed = float_tensor(tokens, spec.channels)
    kernel = conv_silu(spec.channels, spec.kernel, columns, spec.inner, has_bias=True)
    args = [projected, vectors.conv, vectors.conv_bias, inputs.rows, convs]
    args.append(scratch.tensor(mixed.shape))
    _, mixed = op.tensor_ir_inplace_op(kernel, "conv_silu", args, [4, 5], [like(convs), mixed])
    shape = SpaceShape(spec.heads, spec.head_dim, spec.state, spec.groups, isa.lanes)
    dots = float_tensor(tokens, spec.groups, 1, CHUNK)
    args, shapes = [mixed, inputs.rows, keys, scratch.tensor(dots.shape)], [like(keys), dots]
    keys, dots = op.tensor_ir_inplace_op(space_keys(shape), "space_keys", args, [2, 3], shapes)
    out = float_tensor(tokens, spec.inner)
    kernel = scan(shape, columns, spec.inner + spec.channels)
    args = [mixed, projected, vectors.dt_bias, vectors.a, vectors.d, inputs.rows, keys, dots]
    args += [changes, numbers, bases, scratch.tensor(out.shape)]
    shapes = [like(changes), like(numbers), like(bases), out]
    *_, v = op.tensor_ir_inplace_op(kernel, "selective_scan", args, [8, 9, 10, 11], shapes)
    if vectors.norm is None:
        return v
    kernel = gated_norm(spec.groups, spec.inner // spec.groups, columns, vectors.eps)
    return op.tensor_ir_inplace_op(kernel, "gated_norm", [projected, vectors.norm, v], 2, out)
