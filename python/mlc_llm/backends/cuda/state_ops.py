"""Mixers that keep a state, as calls of GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import change, float_tensor
from mlc_llm.backends.operands import GatedDeltaVectors, Mamba2Vectors, Part, StateInputs
from mlc_llm.kernels.cuda.causal_conv import ConvShape, causal_conv
from mlc_llm.kernels.cuda.gated_norms import gated_norm
from mlc_llm.kernels.cuda.head_states import ScanShape
from mlc_llm.kernels.cuda.scans import DeltaShape, delta_scan, selective_scan
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, ShortConvSpec


class StateOps:
    """Some of the operations of `backends.state_ops.StateOps`. `mamba2` without a norm is what
    comes before the gate."""

    def short_conv(
        self, spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs
    ) -> Tensor:
        shape = ConvShape(spec.width, spec.kernel, int(thirds.shape[1]), is_gated=True)
        args = [thirds, weight, inputs.rows]
        return _advanced(causal_conv(shape), "short_conv", args, inputs.states[0], spec.width)

    def scanned(
        self, spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
    ) -> Tensor:
        """As `Ops.mamba2`, or v alone if there is no norm."""
        columns = int(projected.shape[1])
        conv = ConvShape(spec.channels, spec.kernel, columns, spec.inner, has_bias=True)
        args = [projected, vectors.conv, vectors.conv_bias, inputs.rows]
        mixed = _advanced(causal_conv(conv), "conv_silu", args, inputs.states[0], spec.channels)
        shape = ScanShape(spec.heads, spec.head_dim, spec.state)
        kernel = selective_scan(shape, spec.groups, columns, spec.inner + spec.channels)
        args = [mixed, projected, vectors.dt_bias, vectors.a, vectors.d, inputs.rows]
        v = _advanced(kernel, "selective_scan", args, inputs.states[1], spec.inner)
        if vectors.norm is None:
            return v
        width = spec.inner // spec.groups
        norm = gated_norm(spec.groups, width, columns, 0, vectors.eps, gate_first=True)
        return change(norm, "gated_norm", [projected, vectors.norm], v)

    def gated_delta(
        self,
        spec: GatedDeltaSpec,
        parts: Sequence[Part],
        vectors: GatedDeltaVectors,
        inputs: StateInputs,
    ) -> Tensor:
        qkv, z, a, b = parts
        conv = ConvShape(spec.channels, spec.kernel, _columns(qkv), qkv.start)
        args = [qkv.tensor, vectors.conv, inputs.rows]
        mixed = _advanced(causal_conv(conv), "conv_silu", args, inputs.states[0], spec.channels)
        shape = ScanShape(spec.heads, spec.head_dim, spec.key_dim)
        places = (_columns(a), a.start), (_columns(b), b.start)
        kernel = delta_scan(DeltaShape(spec.key_heads, shape, spec.in_turn, *places))
        args = [mixed, a.tensor, b.tensor, vectors.dt_bias, vectors.decay, inputs.rows]
        o = _advanced(kernel, "delta_scan", args, inputs.states[1], spec.inner)
        norm = gated_norm(
            spec.heads, spec.head_dim, _columns(z), z.start, vectors.eps, gate_first=False
        )
        return change(norm, "normed_gate", [z.tensor, vectors.norm], o)


def _columns(part: Part) -> int:
    return int(part.tensor.shape[1])


def _advanced(
    kernel: tvm.tirx.PrimFunc, name: str, args: Sequence[Tensor], state: Tensor, width: int
) -> Tensor:
    """What a kernel gives that changes a state in place, float32 [tokens, width]."""
    out = float_tensor(args[0].shape[0], width)
    given = [*args, state, op.empty(list(out.shape), "float32")]
    places = [len(args), len(args) + 1]
    shapes = [float_tensor(*state.shape), out]
    _, y = op.tensor_ir_inplace_op(kernel, name, given, places, shapes)
    return y
