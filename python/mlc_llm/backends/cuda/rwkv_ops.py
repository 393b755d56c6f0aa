"""RWKV-7, as calls of GPU kernels."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import Input, as_input, call, change, float_tensor
from mlc_llm.backends.operands import Rwkv7Parts, Rwkv7Vectors, StateInputs
from mlc_llm.kernels.cuda.elementwise import changed
from mlc_llm.kernels.cuda.row_norm import row_norm
from mlc_llm.kernels.cuda.token_shift import token_shift
from mlc_llm.kernels.cuda.wkv import wkv_finish, wkv_scan
from mlc_llm.models.recurrent import Rwkv7Spec


class RwkvOps:
    """Some of the operations of `backends.state_ops.StateOps`."""

    def token_shift(self, x: Tensor | Input, factors: Tensor, inputs: StateInputs) -> list[Input]:
        count, width = (int(size) for size in factors.shape)
        (state,) = inputs.states
        rows = _rows(as_input(x))
        out = [float_tensor(rows.shape[0], width) for _ in range(count)]
        args = [rows, factors, inputs.rows, state]
        args += [op.empty(list(one.shape), "float32") for one in out]
        places, shapes = [3 + i for i in range(count + 1)], [float_tensor(*state.shape), *out]
        kernel = token_shift(width, count)
        _, *mixed = op.tensor_ir_inplace_op(kernel, "token_shift", args, places, shapes)
        return [Input("plain", one) for one in mixed]

    def rwkv7(
        self, spec: Rwkv7Spec, parts: Rwkv7Parts, vectors: Rwkv7Vectors, inputs: StateInputs
    ) -> Tensor:
        (state,) = inputs.states
        sizes, is_first = (spec.heads, spec.head_dim), parts.first is None
        out = float_tensor(parts.r.shape[0], spec.width)
        args = [parts.r, parts.w, parts.k, parts.v, parts.a, parts.b, parts.first]
        args += [vectors.w0, vectors.a0, vectors.v0, vectors.k_k, vectors.k_a, inputs.rows, state]
        given = [*(one for one in args if one is not None), op.empty(list(out.shape), "float32")]
        last, shapes = len(given) - 1, [float_tensor(*state.shape), out]
        kernel = wkv_scan(*sizes, is_first=is_first)
        _, o = op.tensor_ir_inplace_op(kernel, "wkv_scan", given, [last - 1, last], shapes)
        args = [parts.r, parts.k, parts.v, parts.a, parts.g, parts.b, parts.first]
        args += [vectors.a0, vectors.v0, vectors.k_a, vectors.r_k, vectors.norm, vectors.norm_bias]
        kernel = wkv_finish(*sizes, spec.eps, is_first=is_first)
        return change(kernel, "wkv_finish", [one for one in args if one is not None], o)


def _rows(x: Input) -> Tensor:
    """What a product reads, as numbers of a tensor of their own."""
    if x.kind == "plain":
        return x.x
    width = int(x.x.shape[1])
    own = call(changed(width), "copy_rows", [x.x], float_tensor(*x.x.shape))
    if x.kind == "norm":
        return change(row_norm(width, x.eps), "norm_rows", [x.weight], own)
    assert x.kind == "layer_norm", "no model mixes the tokens of other rows"
    return change(row_norm(width, x.eps, "layer"), "layer_rows", [x.weight, x.bias], own)
