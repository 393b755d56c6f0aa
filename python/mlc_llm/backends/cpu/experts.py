"""A mixture of experts as calls of CPU kernels.

Rows are sorted by expert, so that a product reads each matrix that is chosen once. gate and up
write the two halves of one tensor, as the kernel that multiplies them reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.formats import WeightFormat, padded_rows, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.kernels.cpu.expert_bias import add_expert_bias
from mlc_llm.kernels.cpu.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cpu.expert_routing import collect, route, send
from mlc_llm.models.spec import ExpertsSpec


class ExpertStack(nn.Module):  # type: ignore[misc]
    """The parameter of the packed matrices [rows, columns] of all experts."""

    is_fast = False

    def __init__(self, experts: int, rows: int, columns: int, fmt: WeightFormat) -> None:
        self.experts, self.rows, self.columns, self.fmt = experts, padded_rows(rows), columns, fmt
        shape, dtype = tensor_shape(fmt, self.rows, columns)
        self.packed = nn.Parameter((experts, *shape), dtype)


class Routes(NamedTuple):
    """What the kernel `route` makes of the scores."""

    weights: Tensor
    expert_rows: Tensor
    tokens: Tensor
    starts: Tensor


class ExpertCalls:
    """The calls for the experts of one layer."""

    def __init__(self, spec: ExpertsSpec, isa: Isa, scratch: Scratch) -> None:
        self._spec, self._isa, self._scratch = spec, isa, scratch

    def route(self, scores: Tensor, bias: Tensor | None) -> Routes:
        """Chooses experts by scores [tokens, padded experts] plus a bias [experts]."""
        spec, m = self._spec, scores.shape[0]
        chosen = spec.experts_per_token
        kernel = route(
            spec.num_experts, int(scores.shape[1]), chosen,
            of_chosen=spec.renormalize or spec.router == "top_then_softmax",
            has_bias=bias is not None,
        )  # fmt: skip
        shapes = [([m, chosen], "float32"), ([m, chosen], "int32"), ([m * chosen], "int32")]
        shapes += [([spec.num_experts + 1], "int32")]
        made = [self._scratch.tensor(*one) for one in shapes]
        out = [Tensor.placeholder(*one) for one in shapes]
        given = [scores] if bias is None else [scores, bias]
        places = [len(given) + i for i in range(len(made))]
        return Routes(*op.tensor_ir_inplace_op(kernel, "route", [*given, *made], places, out))

    def sent(self, routes: Routes, rows: Tensor) -> Tensor:
        """The prepared rows of tokens, as expert rows."""
        count, row = routes.tokens.shape[0], tuple(int(size) for size in rows.shape[1:])
        out = Tensor.placeholder([count, *row], rows.dtype)
        return self._scratch.call(send(row, rows.dtype), "send", [routes.tokens, rows], out)

    def halves(self, routes: Routes) -> Tensor:
        """A tensor for the results of gate and up, side by side."""
        return self._scratch.tensor([routes.tokens.shape[0], 2 * self._spec.intermediate])

    def product(
        self,
        routes: Routes,
        stack: ExpertStack,
        bias: Tensor | None,
        rows: Tensor,
        into: Tensor,
        first: int = 0,
    ) -> Tensor:
        """`into`, with the product of each expert's rows, and its bias, in the columns from `first`
        on."""
        shape, width = (
            ExpertShape(stack.experts, stack.rows, stack.columns, stack.fmt),
            into.shape[1],
        )
        kernel = expert_matmul(shape, self._isa, int(width), first)
        name = f"matmul_experts_{stack.rows}x{stack.columns}_{stack.fmt.name}"
        out, args = float_tensor(*into.shape), [routes.starts, rows, stack.packed, into]
        y = op.tensor_ir_inplace_op(kernel, name, args, 3, out)
        if bias is None:
            return y
        kernel = add_expert_bias(*(int(size) for size in bias.shape), int(width), first)
        return op.tensor_ir_inplace_op(kernel, "add_biases", [routes.starts, bias, y], 2, out)

    def collected(self, routes: Routes, rows: Tensor) -> Tensor:
        """The weighted sum of the results of each token's experts."""
        m, width = routes.expert_rows.shape[0], int(rows.shape[1])
        kernel = collect(width, self._spec.experts_per_token)
        args = [routes.weights, routes.expert_rows, rows]
        return self._scratch.call(kernel, "collect", args, float_tensor(m, width))
