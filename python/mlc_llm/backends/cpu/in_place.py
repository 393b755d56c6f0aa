"""Kernels that change a tensor in place, and need nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.kernels.cpu.add_norm import add_norm
from mlc_llm.kernels.cpu.elementwise import add, multiply
from mlc_llm.kernels.cpu.head_norm import NormedHeads, copied_heads, head_norm
from mlc_llm.kernels.cpu.layer_norm import layer_norm
from mlc_llm.kernels.cpu.rows import put_rows
from mlc_llm.kernels.cpu.token_gate import token_gate
from mlc_llm.kernels.cpu.token_inputs import token_inputs


def added(x: Tensor, y: Tensor | None, bias: Tensor | None, scale: float = 1.0) -> Tensor:
    """x + scale * (y + bias), float32 [tokens, width]. A bias alone may be shorter than a row of x:
    it is added to the first columns."""
    changed = int(x.shape[1]) if bias is None else int(bias.shape[0])
    has = {"has_y": y is not None, "has_bias": bias is not None}
    args = [one for one in (y, bias) if one is not None]
    out = float_tensor(*x.shape)
    kernel = add(int(x.shape[1]), changed, scale, **has)
    return op.tensor_ir_inplace_op(kernel, "add_rows", [*args, x], len(args), out)


def added_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x + norm(y)."""
    kernel, out = add_norm(int(y.shape[1]), eps), float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(kernel, "add_norm", [y, weight, x], 2, out)


def put_rows_in(x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    """x with other rows at some places."""
    kernel, out = put_rows(int(x.shape[1])), float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(kernel, "put_rows", [at, rows, x], 2, out)


def normed_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """layer_norm(x)."""
    kernel, out = layer_norm(int(x.shape[1]), eps), float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(kernel, "layer_norm", [weight, bias, x], 2, out)


def normed_heads(
    x: Tensor, heads: Sequence[NormedHeads], weights: Sequence[Tensor], eps: float
) -> Tensor:
    """x with these heads normalised."""
    kernel, out = head_norm(int(x.shape[1]), *heads, eps=eps), float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(kernel, "head_norm", [*weights, x], len(weights), out)


def gated_tokens(x: Input, gate: Tensor, y: Tensor) -> Tensor:
    """sigmoid(x . gate) * y, one factor a token."""
    kernel = token_gate(x.kind, int(gate.shape[0]), int(y.shape[1]), x.eps)
    args, out = [*x.arguments, gate], float_tensor(*y.shape)
    return op.tensor_ir_inplace_op(kernel, "token_gate", [*args, y], len(args), out)


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor, one number."""
    args, out = [factor, x], float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(multiply(int(x.shape[1])), "multiply_rows", args, 1, out)


def with_context(embedded: Tensor, context: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The inputs of all layers by token, in place of `embedded`."""
    width, whole = int(weight.shape[0]), int(embedded.shape[1])
    kernel = token_inputs(whole // width, width, int(context.shape[1]), eps)
    args, out = [context, weight, embedded], float_tensor(*embedded.shape)
    return op.tensor_ir_inplace_op(kernel, "token_inputs", args, 2, out)


def heads_apart(
    x: Tensor, heads: NormedHeads, eps: float | None, into: Tensor
) -> tuple[Tensor, Tensor]:
    """x, which nobody may change before, and a copy of these heads; eps: they are normalised."""
    kernel = copied_heads(int(x.shape[1]), heads, eps)
    out = [float_tensor(*x.shape), float_tensor(*into.shape)]
    x, apart = op.tensor_ir_inplace_op(kernel, "copied_heads", [x, into], [0, 1], out)
    return x, apart
