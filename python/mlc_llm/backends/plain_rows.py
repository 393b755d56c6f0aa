"""What a few rows need that are not tokens of a layer, by TVM's own operators.

That of backends whose code TVM makes of any operator (`Ops` in `ops.py` says what each computes).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.models.image_spec import Join
from mlc_llm.models.network_spec import Activation

_ACTIVATIONS = {"silu": op.silu, "tanh": op.tanh, "gelu": op.gelu}


class PlainRows:
    """Some of the operations of `backends.ops.Ops`."""

    def activated_rows(self, activation: Activation, x: Tensor) -> Tensor:
        return _ACTIVATIONS[activation](x)

    def zeros(self, width: int) -> Tensor:
        return op.zeros((width,))

    def first_columns(self, x: Tensor, width: int) -> Tensor:
        return x if int(x.shape[1]) == width else op.split(x, [width], axis=1)[0]

    def float_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return op.matmul(x, op.permute_dims(weight)) + bias

    def columns_beside(self, parts: Sequence[Tensor]) -> Tensor:
        return op.concat(list(parts), dim=1)

    def normed_copy(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return op.rms_norm(x, weight, axes=-1, epsilon=eps)

    def at_most_one(self, x: Tensor) -> Tensor:
        return op.minimum(x, op.ones(x.shape, "int32"))

    def spread(self, x: Tensor, row: Tensor, total: int, lowest: float) -> Tensor:
        count = int(row.shape[0])
        zero = op.zeros((count,))
        known = op.where(op.less(row, zero), op.full((count,), lowest), zero)
        places = op.astype(op.maximum(row, zero), "int32")
        taken = relax.op.take(x._expr, places._expr, axis=1, mode="clip")
        found = nn.wrap_nested(taken, "found")
        return op.pad(found + known, [0, 0, 0, total - count])

    def joined_squares(self, x: Tensor, side: int, size: int, join: Join) -> Tensor:
        width = int(x.shape[1])
        squares = op.reshape(x, (side, size, side, size, width))
        if join == "beside":
            rows = op.permute_dims(squares, [0, 2, 1, 3, 4])
            return op.reshape(rows, (side**2, size * size * width))
        summed = op.sum(op.sum(squares, axis=3), axis=1)
        return op.reshape(summed, (side**2, width)) * (1.0 / size**2)
