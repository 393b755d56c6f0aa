"""What a block of a layer gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import Tensor

    from mlc_llm.backends.base import Ops
    from mlc_llm.backends.operands import Input


class Product(NamedTuple):
    """matrix x + bias, not computed yet: a backend can add it to the residual stream in one go."""

    matrix: nn.Module
    x: Input
    bias: Tensor | None = None

    def value(self, ops: Ops) -> Tensor:
        return ops.linear(self.matrix, self.x, bias=self.bias)
