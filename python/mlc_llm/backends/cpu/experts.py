"""A mixture of experts as calls of CPU kernels.

Rows are sorted by expert, so that a product reads each matrix that is chosen once. gate and up
write the two halves of one tensor, as the kernel that multiplies them reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.formats import WeightFormat, padded_rows, tensor_shape
from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.operands import ExpertMatrices
from mlc_llm.kernels.cpu.expert_bias import add_expert_bias
from mlc_llm.kernels.cpu.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cpu.expert_routing import collect, route, send
from mlc_llm.models.network_spec import ExpertsSpec


class ExpertStack(nn.Module):  # type: ignore[misc]
    """The parameter of the packed matrices [rows, columns] of all experts."""

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

    def __init__(
        self, spec: ExpertsSpec, matrices: ExpertMatrices, isa: Isa, scratch: Scratch
    ) -> None:
        self._spec, self._matrices, self._isa, self._scratch = spec, matrices, isa, scratch

    def computed(self, given: Input, scores: Tensor) -> Tensor:
        """What the experts make of an input. scores: of the router, [tokens, padded experts]."""
        routes, wide = self._routes(scores), self._spec.intermediate
        halves = self._scratch.tensor([routes.tokens.shape[0], 2 * wide])
        gate, up, down = self._matrices.gate, self._matrices.up, self._matrices.down
        rows_of = [given.read_by(one, self._isa, self._scratch) for one in (gate, up)]
        rows = self._before(routes, "gate", self._sent(routes, rows_of[0]))
        halves = self._product(routes, "gate", rows, halves)
        if rows_of[1] is not rows_of[0]:
            rows = self._sent(routes, rows_of[1])
        rows = self._before(routes, "up", rows)
        halves = self._product(routes, "up", rows, halves, wide)
        inner = Input(self._spec.activation, halves)
        rows = self._before(routes, "down", inner.read_by(down, self._isa, self._scratch))
        into = self._scratch.tensor([rows.shape[0], down.rows])
        return self._collected(routes, self._product(routes, "down", rows, into))

    def _routes(self, scores: Tensor) -> Routes:
        """Chooses experts by their scores."""
        spec, m = self._spec, scores.shape[0]
        chosen, biases = spec.experts_per_token, self._matrices.biases
        bias = self._matrices.choice_bias if biases is None else biases.router
        kernel = route(
            spec.num_experts, int(scores.shape[1]), chosen,
            of_chosen=spec.renormalize or spec.router == "top_then_softmax",
            has_bias=bias is not None, by_sigmoid=spec.router == "sigmoid_then_top",
            scale=spec.weight_scale,
        )  # fmt: skip
        shapes = [([m, chosen], "float32"), ([m, chosen], "int32"), ([m * chosen], "int32")]
        shapes += [([spec.num_experts + 1], "int32")]
        made = [self._scratch.tensor(*one) for one in shapes]
        out = [Tensor.placeholder(*one) for one in shapes]
        given = [scores] if bias is None else [scores, bias]
        places = [len(given) + i for i in range(len(made))]
        return Routes(*op.tensor_ir_inplace_op(kernel, "route", [*given, *made], places, out))

    def _sent(self, routes: Routes, rows: Tensor) -> Tensor:
        """The prepared rows of tokens, as expert rows."""
        count, row = routes.tokens.shape[0], tuple(int(size) for size in rows.shape[1:])
        out = Tensor.placeholder([count, *row], rows.dtype)
        return self._scratch.call(send(row, rows.dtype), "send", [routes.tokens, rows], out)

    def _before(self, routes: Routes, name: str, rows: Tensor) -> Tensor:
        """What the product with the matrices of that name reads, which may be looked at here."""
        return rows

    def _product(
        self, routes: Routes, name: str, rows: Tensor, into: Tensor, first: int = 0
    ) -> Tensor:
        """`into`, with the product of each expert's rows, and its bias, in the columns from `first`
        on. name: of the matrices."""
        stack, biases = getattr(self._matrices, name), self._matrices.biases
        shape, width = (
            ExpertShape(stack.experts, stack.rows, stack.columns, stack.fmt),
            into.shape[1],
        )
        kernel = expert_matmul(shape, self._isa, int(width), first)
        label = f"matmul_experts_{stack.rows}x{stack.columns}_{stack.fmt.name}"
        out, args = float_tensor(*into.shape), [routes.starts, rows, stack.packed, into]
        y = op.tensor_ir_inplace_op(kernel, label, args, 3, out)
        if biases is None:
            return y
        bias = getattr(biases, name)
        kernel = add_expert_bias(*(int(size) for size in bias.shape), int(width), first)
        return op.tensor_ir_inplace_op(kernel, "add_biases", [routes.starts, bias, y], 2, out)

    def _collected(self, routes: Routes, rows: Tensor) -> Tensor:
        """The weighted sum of the results of each token's experts."""
        m, width = routes.expert_rows.shape[0], int(rows.shape[1])
        kernel = collect(width, self._spec.experts_per_token)
        args = [routes.weights, routes.expert_rows, rows]
        return self._scratch.call(kernel, "collect", args, float_tensor(m, width))
