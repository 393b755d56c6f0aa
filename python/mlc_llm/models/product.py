"""What a block of a layer gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import Tensor

    from mlc_llm.backends.operands import Input
    from mlc_llm.backends.ops import Ops


class Product(NamedTuple):
    """matrix x + bias, not computed yet: a backend can add it to the residual stream in one go."""

    matrix: nn.Module
    x: Input
    bias: Tensor | None = None
    is_part: bool = False
    """matrix x is one part of a sum: those of other ranks are added first."""

    def value(self, ops: Ops) -> Tensor:
        if not self.is_part:
            return ops.linear(self.matrix, self.x, bias=self.bias)
        y = ops.all_reduce(ops.linear(self.matrix, self.x))
        return y if self.bias is None else ops.add_bias(y, self.bias)
