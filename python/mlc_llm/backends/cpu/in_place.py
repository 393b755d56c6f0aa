"""Kernels that change a tensor in place, and need nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.kernels.cpu.add_norm import add_norm
from mlc_llm.kernels.cpu.elementwise import add
from mlc_llm.kernels.cpu.head_norm import NormedHeads, head_norm


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


def normed_heads(
    x: Tensor, heads: Sequence[NormedHeads], weights: Sequence[Tensor], eps: float
) -> Tensor:
    """x with these heads normalised."""
    kernel, out = head_norm(int(x.shape[1]), *heads, eps=eps), float_tensor(*x.shape)
    return op.tensor_ir_inplace_op(kernel, "head_norm", [*weights, x], len(weights), out)
