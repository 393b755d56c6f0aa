"""Small functions over tensors that the operations in `ops.py` are made of."""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import Part
from mlc_llm.models.attention_spec import QueryScaling

GREEDY = 1e-5
"""At or below this temperature the most likely token is taken."""


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]."""
    return nn.wrap_nested(relax.op.take(x._expr, rows._expr, axis=0, mode="clip"), "taken")


def times(x: Tensor, factor: float) -> Tensor:
    """x * factor; nothing is computed for a factor of 1."""
    return x if factor == 1.0 else x * factor


def columns(part: Part, width: int) -> Tensor:
    """A part of a joined result as a tensor of its own, with its bias."""
    tensor, start, bias = part
    if int(tensor.shape[1]) != width:
        call = relax.op.strided_slice(tensor._expr, [1], [start], [start + width])
        tensor = nn.wrap_nested(call, "columns")
    return tensor if bias is None else tensor + bias


def heads_of(part: Part, heads: int, head_dim: int) -> Tensor:
    """[tokens, heads, head_dim]."""
    x = columns(part, heads * head_dim)
    return op.reshape(x, (x.shape[0], heads, head_dim))


def rotated(x: Tensor, rope: Tensor, position: Tensor) -> Tensor:
    """Heads [tokens, heads, head_dim] whose first `dim` elements are turned by the angles of their
    positions, halves paired. rope: [positions, 2, dim/2]."""
    cos, sin = op.split(taken(rope, position), 2, axis=1)
    dim = 2 * int(rope.shape[2])
    whole = dim == int(x.shape[2])
    turned, *rest = [x] if whole else op.split(x, [dim], axis=2)
    low, high = op.split(turned, 2, axis=2)
    return op.concat([low * cos - high * sin, high * cos + low * sin, *rest], dim=2)


def query_scales(spec: QueryScaling, position: Tensor) -> Tensor:
    """The factor of each token's queries, [tokens, 1, 1]."""
    context = relax.const(spec.context, "int32")
    turns = nn.wrap_nested(relax.op.floor_divide(position._expr, context), "turns")
    factor = op.log(op.astype(turns, "float32") + 1.0) * spec.beta + 1.0
    return op.reshape(factor, (position.shape[0], 1, 1))


def lowest_kept(inside: Tensor, kept: Tensor) -> Tensor:
    """The smallest weight above 0 that is inside the cut, [rows, 1]."""
    positive = op.where(
        op.greater(inside, op.zeros(inside.shape)), inside, op.full(kept.shape, 2.0)
    )
    return op.min(positive, axis=1, keepdims=True)


def chosen(logits: Tensor, total: Tensor, temperature: Tensor, token: Tensor) -> Tensor:
    """The token drawn, the most likely one when greedy, -1 where the logits are not finite."""
    greedy = nn.wrap_nested(relax.op.argmax(logits._expr, axis=1), "greedy")
    is_greedy = op.squeeze(op.less_equal(temperature, op.full(temperature.shape, GREEDY)), 1)
    token = op.where(is_greedy, op.astype(greedy, "int32"), token)
    is_number = nn.wrap_nested(relax.op.isfinite(total._expr), "is_number")
    return op.where(is_number, token, op.full(token.shape, -1, "int32"))
