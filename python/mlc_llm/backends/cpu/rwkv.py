"""RWKV-7, as calls of CPU kernels."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.operands import Rwkv7Parts, Rwkv7Vectors, StateInputs
from mlc_llm.kernels.cpu.token_shift import token_shift
from mlc_llm.kernels.cpu.wkv import wkv
from mlc_llm.models.recurrent import Rwkv7Spec


def shifted_tokens(
    x: Tensor, factors: Tensor, inputs: StateInputs, scratch: Scratch
) -> list[Tensor]:
    """As `Ops.token_shift`."""
    count, width = (int(size) for size in factors.shape)
    (state,) = inputs.states
    out = [float_tensor(x.shape[0], width) for _ in range(count)]
    into = [scratch.tensor(one.shape) for one in out]
    args = [x, factors, inputs.rows, state, *into]
    places, shapes = [3 + i for i in range(count + 1)], [float_tensor(*state.shape), *out]
    kernel = token_shift(width, count)
    _, *mixed = op.tensor_ir_inplace_op(kernel, "token_shift", args, places, shapes)
    return list(mixed)


def rwkv7(
    spec: Rwkv7Spec,
    parts: Rwkv7Parts,
    vectors: Rwkv7Vectors,
    inputs: StateInputs,
    scratch: Scratch,
    isa: Isa,
) -> Tensor:
    """As `Ops.rwkv7`."""
    (state,) = inputs.states
    out = float_tensor(parts.r.shape[0], spec.width)
    args = [parts.r, parts.w, parts.k, parts.v, parts.a, parts.g, parts.b, parts.first]
    args += [vectors.w0, vectors.a0, vectors.v0, vectors.k_k, vectors.k_a, vectors.r_k]
    args += [vectors.norm, vectors.norm_bias, inputs.rows, state, scratch.tensor(out.shape)]
    given = [one for one in args if one is not None]
    shapes, last = [float_tensor(*state.shape), out], len(given) - 1
    kernel = wkv(spec.heads, spec.head_dim, spec.eps, isa.lanes, is_first=parts.first is None)
    _, y = op.tensor_ir_inplace_op(kernel, "wkv", given, [last - 1, last], shapes)
    return y
