"""The operations of a model as calls of GPU kernels.

A product reads its input as two planes of float16, so `norm` and `gated` compute nothing and return
an `Input`, of which those planes are made once for all matrices that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.all_reduce import reduced
from mlc_llm.backends.cuda.attention_ops import AttentionOps
from mlc_llm.backends.cuda.calls import Input, as_input, call, change, float_tensor
from mlc_llm.backends.cuda.choice_ops import ChoiceOps
from mlc_llm.backends.cuda.experts import ExpertStack, computed
from mlc_llm.backends.cuda.formats import WeightFormat, format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.cuda.plain_ops import PlainOps
from mlc_llm.backends.cuda.row_ops import RowOps, with_adapters
from mlc_llm.backends.cuda.rwkv_ops import RwkvOps
from mlc_llm.backends.cuda.state_ops import StateOps
from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.operands import (
    AdapterInputs,
    ExpertMatrices,
    Mamba2Vectors,
    Part,
    StateInputs,
)
from mlc_llm.kernels.cuda.elementwise import add, beside, changed, multiply
from mlc_llm.kernels.cuda.embedding import embedding
from mlc_llm.kernels.cuda.matmul import matmul
from mlc_llm.kernels.cuda.matmul_hopper import can_multiply, matmul_hopper
from mlc_llm.kernels.cuda.row_norm import row_norm
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.precision import Precision

EXACT_ROLES: dict[Precision, tuple[str, ...]] = {
    "fast-prompts": ("embedding", "router", "head"),
    "fast": ("router",),
}
"""Of matrices whose input is rounded for no token. A router's choice is not a small difference."""


class PackedMatrix(nn.Module):  # type: ignore[misc]
    """The parameter of a packed matrix [rows, columns]; its packed rows are padded."""

    def __init__(
        self,
        rows: int,
        columns: int,
        fmt: WeightFormat,
        *,
        is_fast: bool = False,
        planes: int = 2,
        has_wgmma: bool = False,
    ) -> None:
        """is_fast: the `fast_tokens` are multiplied in one plane, by wgmma if there is that.
        planes: of all others."""
        self.rows, self.columns, self.fmt = padded_rows(rows), columns, fmt
        self.is_fast, self.planes = is_fast, planes
        self.by_wgmma = is_fast and has_wgmma and can_multiply(fmt)
        self.packed = nn.Parameter(*tensor_shape(fmt, self.rows, columns))

    @property
    def product_name(self) -> str:
        """A name for kernels that multiply it."""
        return f"matmul_{self.rows}x{self.columns}_{self.fmt.name}"


class CudaOps(AttentionOps, ChoiceOps, PlainOps, RowOps, RwkvOps, StateOps, KeptStates):
    """See `backends.ops.Ops`."""

    def __init__(
        self, kv_dtype: str = "float16", precision: Precision = "exact", *, has_wgmma: bool = False
    ) -> None:
        """has_wgmma: of the architecture that code is for."""
        self.kv_dtype, self._precision, self._has_wgmma = kv_dtype, precision, has_wgmma
        self.has_fast_tokens, self.is_fast = False, precision == "fast"
        self._fast_tokens: Tensor | None = None
        self._adapted: list[tuple[PackedMatrix, AdapterInputs]] = []

    def begin(self, fast_tokens: Tensor | None = None, *, whole: bool = False) -> None:
        self._fast_tokens = fast_tokens

    def begin_layer(self) -> None:
        """Memory is shared by TVM's plan."""

    def adapt(self, matrices: Sequence[tuple[PackedMatrix, AdapterInputs]]) -> None:
        self._adapted = list(matrices)

    def padded_rows(self, rows: int) -> int:
        return padded_rows(rows)

    def matrix(
        self, rows: int, columns: int, kind: str, role: str, kept: range = range(0)
    ) -> PackedMatrix:
        is_rounded = role not in EXACT_ROLES.get(self._precision, (role,))
        is_fast, planes = is_rounded and not self.is_fast, 1 if is_rounded and self.is_fast else 2
        self.has_fast_tokens |= is_fast
        return PackedMatrix(
            rows, columns, format_of_kind(kind),
            is_fast=is_fast, planes=planes, has_wgmma=self._has_wgmma,
        )  # fmt: skip

    def tied_head(self, embedding: PackedMatrix) -> PackedMatrix:
        return embedding

    def embedding(self, table: PackedMatrix, tokens: Tensor, scale: float) -> Tensor:
        kernel = embedding(table.rows, table.columns, table.fmt, scale)
        out = float_tensor(tokens.shape[0], table.columns)
        return call(kernel, "embedding", [tokens, table.packed], out)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Input:
        return Input("norm", x, weight, eps=eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Input:
        return Input("layer_norm", x, weight, bias, eps)

    def layer_normed(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        kernel = row_norm(int(x.shape[1]), eps, "layer")
        return change(kernel, "layer_rows", [weight, bias], x)

    def normed_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if bias is not None:
            return self.layer_normed(x, weight, bias, eps)
        return change(row_norm(int(x.shape[1]), eps), "norm_rows", [weight], x)

    def gated(self, activation: str, gate: Part, up: Part, width: int) -> Input:
        x = gate.tensor
        is_joined = x is up.tensor and int(x.shape[1]) == 2 * width
        if not is_joined:
            x = _beside(gate, up, width)
        if gate.bias is None:
            return Input(activation, x)
        return Input(f"{activation}_biased", x, gate.bias, up.bias)

    def activated(self, activation: str, x: Part, width: int) -> Input:
        assert int(x.tensor.shape[1]) == width, "rows are padded"
        kind = f"{activation}_alone"
        return Input(kind if x.bias is None else f"{kind}_biased", x.tensor, x.bias)

    def linear(
        self,
        matrix: PackedMatrix,
        x: Tensor | Input,
        add_to: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        if scale == 1.0:
            y = self._product(matrix, x, add_to)
            return y if bias is None else _added(y, None, bias)
        y = self._product(matrix, x)
        if add_to is not None:
            return _added(add_to, y, bias, scale)
        return self.scaled(y if bias is None else _added(y, None, bias), scale)

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernel = row_norm(int(x.shape[1]), eps, "add", int(y.shape[1]))
        return change(kernel, "add_norm", [y, weight], x)

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return _added(x, y, None, scale)

    def scaled(self, x: Tensor, factor: float | Tensor) -> Tensor:
        if isinstance(factor, Tensor):
            return change(multiply(int(x.shape[1])), "multiply_rows", [factor], x)
        rows = x if x.ndim == 2 else op.reshape(x, (1, x.shape[0]))
        y = call(
            changed(int(rows.shape[1]), factor), "scale_rows", [rows], float_tensor(*rows.shape)
        )
        return y if x.ndim == 2 else op.reshape(y, tuple(x.shape))

    def capped(self, x: Tensor, cap: float) -> Tensor:
        return call(changed(int(x.shape[1]), cap=cap), "cap_rows", [x], float_tensor(*x.shape))

    def take_input_rows(self, x: Tensor | Input, rows: Tensor) -> Tensor | Input:
        if not isinstance(x, Input):
            return self.take_rows(x, rows)
        assert x.weight is None or x.weight.ndim == 1, "only x has rows"
        return replace(x, x=self.take_rows(x.x, rows), _planes={})

    def all_reduce(self, x: Tensor) -> Tensor:
        return reduced(x)

    def add_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        return _added(x, None, bias)

    def expert_matrices(self, experts: int, rows: int, columns: int, kind: str) -> ExpertStack:
        planes = 1 if self.is_fast else 2
        return ExpertStack(experts, rows, columns, format_of_kind(kind), planes)

    def moe(self, spec: ExpertsSpec, x: Tensor | Input, matrices: ExpertMatrices) -> Tensor:
        given = as_input(x)
        return computed(spec, given, self.linear(matrices.router, given), matrices)

    def mamba2(
        self, spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
    ) -> Tensor | Input:
        y = self.scanned(spec, projected, vectors, inputs)
        return y if spec.norm else self.gated("silu", Part(projected), Part(y), spec.inner)

    def _product(
        self, matrix: PackedMatrix, x: Tensor | Input, add_to: Tensor | None = None
    ) -> Tensor:
        """x W^T, added to `add_to` in place if that is given, with what adapters add."""
        planes = as_input(x).planes(matrix.columns)
        y = _product(matrix, planes, add_to, self._fast_tokens if matrix.is_fast else None)
        inputs = next((one for adapted, one in self._adapted if adapted is matrix), None)
        return y if inputs is None else with_adapters(y, planes, matrix.columns, inputs)


def _product(
    matrix: PackedMatrix, planes: Tensor, add_to: Tensor | None, fast: Tensor | None
) -> Tensor:
    """The product of rows of planes. fast: int32 [1], of how many of the first rows one plane."""
    if fast is not None and matrix.by_wgmma:
        return _product_in_two(matrix, planes, add_to, fast)
    kernel = matmul(
        matrix.rows, matrix.columns, matrix.fmt, accumulate=add_to is not None,
        fast=None if fast is None else "rounded", planes=matrix.planes,
    )  # fmt: skip
    name = matrix.product_name + ("" if fast is None else "_fast")
    args = [planes, matrix.packed, *([] if fast is None else [fast])]
    if add_to is None:
        return call(kernel, name, args, float_tensor(planes.shape[0], matrix.rows))
    return change(kernel, f"{name}_add", args, add_to)


def _product_in_two(
    matrix: PackedMatrix, planes: Tensor, add_to: Tensor | None, fast: Tensor
) -> Tensor:
    """The same, fast rows by wgmma, and all others as without it: so the bits of a token depend on
    neither how many tokens a step has nor on how many of them are fast."""
    has_sum, sizes = add_to is not None, (matrix.rows, matrix.columns, matrix.fmt)
    y = add_to if add_to is not None else op.empty([planes.shape[0], matrix.rows], "float32")
    args, name = [planes, matrix.packed, fast], matrix.product_name + "_add" * has_sum
    first = matmul_hopper(*sizes, planes=1, accumulate=has_sum, has_fast=True)
    y = change(first, f"{name}_wgmma", args, y)
    return change(matmul(*sizes, accumulate=has_sum, fast="skipped"), f"{name}_others", args, y)


def _added(x: Tensor, y: Tensor | None, bias: Tensor | None, scale: float = 1.0) -> Tensor:
    """x + scale * (y + bias), in place of x. A bias alone may be shorter than a row of x."""
    width = int(x.shape[1])
    columns = width if bias is None else int(bias.shape[0])
    kernel = add(
        width, columns, scale, has_y=y is not None, has_bias=bias is not None,
        y_width=0 if y is None else int(y.shape[1]),
    )  # fmt: skip
    args: list[Any] = [one for one in (y, bias) if one is not None]
    return change(kernel, "add_rows", args, x)


def _beside(gate: Part, up: Part, width: int) -> Tensor:
    """Columns of two tensors in one."""
    parts = (gate, up)
    first, second = (int(part.tensor.shape[1]) for part in parts)
    kernel = beside((first, second), (gate.start, up.start), width)
    args = [part.tensor for part in parts]
    return call(kernel, "beside", args, float_tensor(gate.tensor.shape[0], 2 * width))
