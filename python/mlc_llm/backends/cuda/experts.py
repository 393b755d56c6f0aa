"""A mixture of experts as calls of GPU kernels.

Rows are sorted by expert, so that a product reads each matrix that is chosen once for up to 32 of
them. gate and up write the two halves of one tensor, as the kernel that multiplies them reads it.
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import Input, call, change, float_tensor
from mlc_llm.backends.cuda.formats import WeightFormat, padded_rows, tensor_shape
from mlc_llm.backends.operands import ExpertMatrices
from mlc_llm.kernels.cuda.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cuda.expert_routing import (
    CHUNK,
    add_own_bias,
    choose,
    choose_by_sigmoid,
    collect,
    sort,
)
from mlc_llm.kernels.cuda.matmul import ROWS
from mlc_llm.models.network_spec import ExpertsSpec


class ExpertStack(nn.Module):  # type: ignore[misc]
    """The parameter of the packed matrices [rows, columns] of all experts."""

    def __init__(
        self, experts: int, rows: int, columns: int, fmt: WeightFormat, planes: int = 2
    ) -> None:
        """planes: of what is multiplied with them."""
        self.experts, self.rows, self.columns, self.fmt = experts, padded_rows(rows), columns, fmt
        self.planes = planes
        shape, dtype = tensor_shape(fmt, self.rows, columns)
        self.packed = nn.Parameter((experts, *shape), dtype)


class Routes(NamedTuple):
    """What the kernels make of the scores (`kernels/cuda/expert_routing.py`)."""

    weights: Tensor
    expert_rows: Tensor
    tokens: Tensor
    owners: Tensor
    chunks: Tensor


def computed(spec: ExpertsSpec, given: Input, scores: Tensor, matrices: ExpertMatrices) -> Tensor:
    """What the experts make of an input. scores: of the router, [tokens, padded experts]."""
    routes = _routes(spec, scores, matrices)
    wide, gate, down = spec.intermediate, matrices.gate, matrices.down
    halves = op.empty([routes.tokens.shape[0], 2 * wide], "float32")
    planes = given.planes(gate.columns)
    for name, first in (("gate", 0), ("up", wide)):
        halves = _product(routes, matrices, name, planes, halves, first, has_tokens=True)
    inner = Input(spec.activation, halves).planes(down.columns)
    into = op.empty([routes.tokens.shape[0], down.rows], "float32")
    each = _product(routes, matrices, "down", inner, into, 0, has_tokens=False)
    out = float_tensor(scores.shape[0], down.rows)
    kernel = collect(down.rows, spec.experts_per_token)
    return call(kernel, "collect", [routes.weights, routes.expert_rows, each], out)


def _routes(spec: ExpertsSpec, scores: Tensor, matrices: ExpertMatrices) -> Routes:
    """Chooses experts by their scores, and sorts the rows of tokens by expert."""
    m, chosen, biases = scores.shape[0], spec.experts_per_token, matrices.biases
    bias = matrices.choice_bias if biases is None else biases.router
    sizes = spec.num_experts, int(scores.shape[1]), chosen
    if spec.router == "sigmoid_then_top":
        kernel = choose_by_sigmoid(
            *sizes, of_chosen=spec.renormalize, has_bias=bias is not None, scale=spec.weight_scale
        )
    else:
        of_chosen = spec.renormalize or spec.router == "top_then_softmax"
        kernel = choose(*sizes, of_chosen=of_chosen, has_bias=bias is not None)
    given = [scores] if bias is None else [scores, bias]
    shapes = [float_tensor(m, chosen), Tensor.placeholder([m, chosen], "int32")]
    weights, choice = op.tensor_ir_op(kernel, "choose_experts", given, shapes)
    rows = m * chosen
    most = tvm.tirx.min(rows, tvm.tirx.const(spec.num_experts, "int64")) + rows // ROWS
    tables = [[m, chosen], [rows], [rows], [most, CHUNK]]
    found = op.tensor_ir_op(
        sort(spec.num_experts, chosen), "sort_rows", [choice],
        [Tensor.placeholder(shape, "int32") for shape in tables],
    )  # fmt: skip
    return Routes(weights, *found)


def _product(
    routes: Routes,
    matrices: ExpertMatrices,
    name: str,
    rows: Tensor,
    into: Tensor,
    first: int,
    *,
    has_tokens: bool,
) -> Tensor:
    """`into`, with the product of each expert's rows, and its bias, in the columns from `first` on.
    name: of the matrices. has_tokens: the rows are those of tokens."""
    stack, biases, width = getattr(matrices, name), matrices.biases, int(into.shape[1])
    shape = ExpertShape(stack.experts, stack.rows, stack.columns, stack.fmt)
    kernel = expert_matmul(shape, width, first, has_tokens=has_tokens, planes=stack.planes)
    label = f"matmul_experts_{stack.rows}x{stack.columns}_{stack.fmt.name}"
    args = [routes.chunks, *([routes.tokens] if has_tokens else []), rows, stack.packed]
    y = change(kernel, label, args, into)
    if biases is None:
        return y
    bias = getattr(biases, name)
    kernel = add_own_bias(*(int(size) for size in bias.shape), width, first)
    return change(kernel, "add_biases", [routes.owners, bias], y)
