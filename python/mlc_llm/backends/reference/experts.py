"""A mixture of experts in plain Relax: which experts a token gets, and what they make of it."""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import ExpertMatrices, Matrix
from mlc_llm.backends.reference.activations import gated
from mlc_llm.kernels.reference_experts import expert_product
from mlc_llm.models.network_spec import ExpertsSpec


class ExpertStack(nn.Module):  # type: ignore[misc]
    """A parameter float32 [experts, rows, columns]."""

    def __init__(self, experts: int, rows: int, columns: int) -> None:
        self.packed = nn.Parameter((experts, rows, columns), "float32")


def chosen_experts(
    spec: ExpertsSpec, scores: Tensor, choice_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights, float32, and the numbers, int32, of the chosen experts, both
    [tokens, experts_per_token]. scores: of the router, [tokens, num_experts]."""
    if spec.router == "sigmoid_then_top":
        return _chosen_by_sigmoids(spec, op.sigmoid(scores), choice_bias)
    if spec.router == "softmax_then_top":
        scores = op.softmax(scores, axis=1)
    count = spec.experts_per_token
    weight, experts = op.topk(scores, count, axis=1, ret_type="both", dtype="int32")
    if spec.router == "top_then_softmax":
        weight = op.softmax(weight, axis=1)
    if spec.renormalize:
        weight = weight / op.sum(weight, axis=1, keepdims=True)
    return weight, experts


def _chosen_by_sigmoids(
    spec: ExpertsSpec, scores: Tensor, choice_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """scores: of sigmoids."""
    rated = scores if choice_bias is None else scores + choice_bias
    count = spec.experts_per_token
    _, experts = op.topk(rated, count, axis=1, ret_type="both", dtype="int32")
    weight = nn.wrap_nested(relax.op.gather_elements(scores._expr, experts._expr, 1), "weight")
    if spec.renormalize:
        weight = weight / op.sum(weight, axis=1, keepdims=True)
    return (weight if spec.weight_scale == 1.0 else weight * spec.weight_scale), experts


def weighted_results(
    spec: ExpertsSpec, x: Tensor, chosen: tuple[Tensor, Tensor], matrices: ExpertMatrices
) -> Tensor:
    """What the chosen experts make of x [tokens, hidden], times their weights, added."""
    weight, experts = chosen
    biases = matrices.biases
    rows = op.reshape(x, (x.shape[0], 1, x.shape[1]))
    gate = _products(matrices.gate, rows, experts, biases and biases.gate)
    up = _products(matrices.up, rows, experts, biases and biases.up)
    inner = gated(spec.activation, gate, up)
    each = _products(matrices.down, inner, experts, biases and biases.down)
    return op.sum(each * op.unsqueeze(weight, 2), axis=1)


def _products(stack: Matrix, x: Tensor, experts: Tensor, bias: Tensor | None) -> Tensor:
    """[tokens, chosen, rows]: each chosen expert's matrix times the row of x that it reads, plus
    its row of `bias`. x: [tokens, chosen, columns], or [tokens, 1, columns] where all experts read
    the same."""
    count, rows, width = (int(size) for size in stack.packed.shape)
    inputs, chosen = int(x.shape[1]), int(experts.shape[1])
    kernel = expert_product(count, rows, width, chosen, is_shared=inputs == 1)
    out = Tensor.placeholder([x.shape[0], chosen, rows], "float32")
    y = op.tensor_ir_op(kernel, "expert_product", [x, experts, stack.packed], out)
    if bias is None:
        return y
    own = relax.op.take(bias._expr, experts._expr, axis=0, mode="clip")
    return y + nn.wrap_nested(own, "own_bias")
