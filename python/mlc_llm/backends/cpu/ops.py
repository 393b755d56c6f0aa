"""The operations of a model as calls of CPU kernels.

A product reads its input quantised, so `norm` and `gated` compute nothing and return an `Input`.
`linear` makes what its matrix reads (`inputs.py`), once for all matrices that read the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.all_reduce import reduced
from mlc_llm.backends.cpu.adapters import Adapted
from mlc_llm.backends.cpu.attention_ops import AttentionOps
from mlc_llm.backends.cpu.chunked_states import ChunkedStates
from mlc_llm.backends.cpu.delta import gated_delta
from mlc_llm.backends.cpu.experts import ExpertCalls, ExpertStack
from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.cpu.in_place import (
    added,
    added_norm,
    gated_tokens,
    multiplied,
    normed_rows,
    put_rows_in,
    with_context,
)
from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.recurrent import convolved_thirds, mamba2
from mlc_llm.backends.cpu.rwkv import rwkv7, shifted_tokens
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.cpu.vectors import keep_vectors, kept_vectors
from mlc_llm.backends.operands import (
    AdapterInputs,
    ExpertMatrices,
    GatedDeltaVectors,
    Mamba2Vectors,
    Part,
    Rwkv7Parts,
    Rwkv7Vectors,
    StateInputs,
)
from mlc_llm.backends.plain_rows import PlainRows
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.amx_split import can_split
from mlc_llm.kernels.cpu.edit_logits import edit_logits
from mlc_llm.kernels.cpu.elementwise import beside, changed
from mlc_llm.kernels.cpu.embedding import embedding
from mlc_llm.kernels.cpu.matmul import has_fast_rows, has_one_plane, matmul
from mlc_llm.kernels.cpu.pair_matmul import has_pairs
from mlc_llm.kernels.cpu.rows import chosen_logits, spread, take_rows
from mlc_llm.kernels.cpu.sampling import CHUNK, sample
from mlc_llm.kernels.cpu.top_tokens import MOST, top_tokens
from mlc_llm.kernels.row_kinds import KINDS
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec

FAST_ROLES = ("o", "mlp", "down")
"""Roles of the matrices that are multiplied faster, and less exactly, for `fast_tokens`."""


class PackedMatrix(nn.Module):  # type: ignore[misc]
    """The parameter of a packed matrix [rows, columns]; its packed rows are padded.

    exact: rows of the matrix whose results are exact in every precision.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        fmt: WeightFormat,
        *,
        is_fast: bool,
        exact: range = range(0),
    ) -> None:
        self.rows, self.columns, self.fmt = padded_rows(rows), columns, fmt
        self.is_fast, self.exact = is_fast, exact
        self.packed = nn.Parameter(*tensor_shape(fmt, self.rows, columns))
        self.is_exact = len(exact) == rows


class CpuOps(AttentionOps, PlainRows, ChunkedStates):
    """See `backends.ops.Ops`."""

    def __init__(self, isa: Isa) -> None:
        self._isa = isa
        self._scratch = Scratch()
        self._fast_tokens: Tensor | None = None
        self._whole = False
        self._adapted = Adapted([], isa)
        self.has_fast_tokens = self.is_fast = False

    def begin(self, fast_tokens: Tensor | None = None, *, whole: bool = False) -> None:
        self._scratch, self._fast_tokens, self._whole = Scratch(), fast_tokens, whole

    def adapt(self, matrices: Sequence[tuple[PackedMatrix, AdapterInputs]]) -> None:
        self._adapted = Adapted(matrices, self._isa)

    def begin_layer(self) -> None:
        self._scratch.start_layer()

    def padded_rows(self, rows: int) -> int:
        return padded_rows(rows)

    def matrix(
        self, rows: int, columns: int, kind: str, role: str, kept: range = range(0)
    ) -> PackedMatrix:
        fmt = format_of_kind(kind, half=self._isa.half, fixed_point=self._isa.amx_tiles)
        in_pairs = has_pairs(fmt, self._isa, columns)
        # Eight bits of queries, keys and values would cost most of the accuracy; bfloat16 does not.
        is_fast = role in FAST_ROLES or (role == "qkv" and (self._isa.amx_tiles or in_pairs))
        is_fast = is_fast and has_fast_rows(fmt, self._isa, columns)
        self.has_fast_tokens |= is_fast
        self._note(fmt, is_fast or in_pairs)
        # A router's scores decide which experts compute, and take hardly any time.
        exact = range(rows) if role == "router" else kept if has_one_plane(fmt) else range(0)
        return PackedMatrix(rows, columns, fmt, is_fast=is_fast, exact=exact)

    def expert_matrices(self, experts: int, rows: int, columns: int, kind: str) -> ExpertStack:
        fmt = format_of_kind(kind, half=self._isa.half, fixed_point=self._isa.amx_tiles)
        self._note(fmt, False)
        return ExpertStack(experts, rows, columns, fmt)

    def _note(self, fmt: WeightFormat, has_fast_rows: bool) -> None:
        """A product reads matrices of this format."""
        self.is_fast |= self._isa.one_plane and (has_one_plane(fmt) or has_fast_rows)

    def tied_head(self, embedding: PackedMatrix) -> PackedMatrix:
        return embedding

    def embedding(self, table: PackedMatrix, tokens: Tensor, scale: float) -> Tensor:
        kernel = embedding(table.rows, table.columns, table.fmt, scale)
        out = float_tensor(tokens.shape[0], table.columns)
        return op.tensor_ir_op(kernel, "embedding", [tokens, table.packed], out)

    def put_rows(self, x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        return put_rows_in(x, at, rows)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Input:
        return Input("norm", x, weight, eps=eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Input:
        return Input("layer_norm", x, weight, bias, eps)

    def layer_normed(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return normed_rows(x, weight, bias, eps)

    def normed_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if bias is not None:
            return op.layer_norm(x, int(weight.shape[0]), weight, bias, eps)
        return op.rms_norm(x, weight, axes=-1, epsilon=eps)

    def gated(self, activation: str, gate: Part, up: Part, width: int) -> Input:
        x = gate.tensor if gate.tensor is up.tensor else self._beside(gate, up, width)
        assert int(x.shape[1]) == 2 * width, "rows are padded"
        if gate.bias is None:
            return Input(activation, x)
        return Input(f"{activation}_biased", x, gate.bias, up.bias)

    def _beside(self, gate: Part, up: Part, width: int) -> Tensor:
        """Columns of two tensors in one."""
        parts = (gate, up)
        widths = tuple(int(part.tensor.shape[1]) for part in parts)
        kernel = beside(widths, tuple(part.start for part in parts), width)
        out = float_tensor(gate.tensor.shape[0], 2 * width)
        return self._scratch.call(kernel, "beside", [part.tensor for part in parts], out)

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
            return y if bias is None else added(y, None, bias)
        y = self._product(matrix, x)
        if add_to is not None:
            return added(add_to, y, bias, scale)
        return self.scaled(y if bias is None else added(y, None, bias), scale)

    def _product(
        self, matrix: PackedMatrix, x: Tensor | Input, add_to: Tensor | None = None
    ) -> Tensor:
        """x W^T, added to `add_to` in place if that is given."""
        given = x if isinstance(x, Input) else Input("plain", x)
        inputs = self._adapted.of(matrix)
        if inputs is None:
            return self._plain_product(matrix, given, add_to)
        if add_to is not None and KINDS[given.kind].norm:  # it may be a norm of what is added to
            given = Input("plain", given.as_floats(matrix.columns, self._scratch))
        y = self._plain_product(matrix, given, add_to, inputs)
        return self._adapted.add_to(y, given, inputs, matrix.fmt)

    def _plain_product(
        self,
        matrix: PackedMatrix,
        given: Input,
        add_to: Tensor | None = None,
        inputs: AdapterInputs | None = None,
    ) -> Tensor:
        """The same without adapters; inputs: of those that come next."""
        fast = self._fast_tokens if matrix.is_fast else None
        split = self._is_split(matrix, fast)
        args, source = self._read(given, matrix, fast, split=split)
        add = add_to is not None
        has_fast, asks = fast is not None, None
        if inputs is not None:
            asks = self._adapted.asks(inputs, matrix.fmt)
        isa = replace(self._isa, one_plane=False) if matrix.is_exact else self._isa
        kernel = matmul(
            matrix.rows, matrix.columns, matrix.fmt, isa,
            accumulate=add, fast=has_fast, split=split, exact=matrix.exact, asks=asks,
            source=source,
        )  # fmt: skip
        args += [matrix.packed, *([] if fast is None else [fast])]
        if inputs is not None and asks is not None:
            args += self._adapted.factors(inputs)
        kind = "" if source is None else f"_{source.kind}"
        name = f"matmul_{matrix.rows}x{matrix.columns}_{matrix.fmt.name}{kind}"
        if add_to is None:
            out = float_tensor(given.x.shape[0], matrix.rows)
            return self._scratch.call(kernel, name, args, out)
        return op.tensor_ir_inplace_op(
            kernel, f"{name}_add", [*args, add_to], len(args), float_tensor(*add_to.shape)
        )

    def _read(
        self, given: Input, matrix: PackedMatrix, fast: Tensor | None, *, split: bool
    ) -> tuple[list[Tensor], Source | None]:
        """See `Input.given_to`."""
        return given.given_to(matrix, self._isa, self._scratch, fast, split=split)

    def _is_split(self, matrix: PackedMatrix, fast: Tensor | None) -> bool:
        """Whether the matrix is multiplied in two parts of each number."""
        return self._whole and fast is None and can_split(matrix.fmt, self._isa, matrix.columns)

    def all_reduce(self, x: Tensor) -> Tensor:
        return reduced(x)

    def add_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        return added(x, None, bias)

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
        return added_norm(x, y, weight, eps)

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return added(x, y, None, scale)

    def scaled(self, x: Tensor, factor: float | Tensor) -> Tensor:
        if isinstance(factor, Tensor):
            return multiplied(x, factor)
        if x.ndim == 1:
            return x * factor
        return self._scratch.call(changed(int(x.shape[1]), factor), "scale_rows", [x], x)

    def token_inputs(self, embedded: Tensor, context: Tensor, weight: Tensor, eps: float) -> Tensor:
        return with_context(embedded, context, weight, eps)

    def copied(self, x: Tensor) -> Tensor:
        kernel = changed(int(x.shape[1]), 1.0)
        return op.tensor_ir_op(kernel, "copy_rows", [x], float_tensor(*x.shape))

    def capped(self, x: Tensor, cap: float) -> Tensor:
        return self._scratch.call(changed(int(x.shape[1]), cap=cap), "cap_rows", [x], x)

    def short_conv(
        self, spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs
    ) -> Tensor:
        return convolved_thirds(spec, thirds, weight, inputs, self._scratch)

    def mamba2(
        self, spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
    ) -> Tensor | Input:
        y = mamba2(spec, projected, vectors, inputs, self._scratch, self._isa)
        return y if spec.norm else self.gated("silu", Part(projected), Part(y), spec.inner)

    def gated_delta(
        self,
        spec: GatedDeltaSpec,
        parts: Sequence[Part],
        vectors: GatedDeltaVectors,
        inputs: StateInputs,
    ) -> Tensor:
        return gated_delta(spec, parts, vectors, inputs, self._scratch, self._isa)

    def token_shift(self, x: Tensor | Input, factors: Tensor, inputs: StateInputs) -> list[Input]:
        given = x if isinstance(x, Input) else Input("plain", x)
        wide = given.as_floats(int(factors.shape[1]), self._scratch)
        mixed = shifted_tokens(wide, factors, inputs, self._scratch)
        return [Input("plain", one) for one in mixed]

    def rwkv7(
        self, spec: Rwkv7Spec, parts: Rwkv7Parts, vectors: Rwkv7Vectors, inputs: StateInputs
    ) -> Tensor:
        return rwkv7(spec, parts, vectors, inputs, self._scratch, self._isa)

    def moe(self, spec: ExpertsSpec, x: Tensor | Input, matrices: ExpertMatrices) -> Tensor:
        given = x if isinstance(x, Input) else Input("plain", x)
        calls = self._experts(spec, matrices)
        return calls.computed(given, self.linear(matrices.router, given))

    def _experts(self, spec: ExpertsSpec, matrices: ExpertMatrices) -> ExpertCalls:
        return ExpertCalls(spec, matrices, self._isa, self._scratch)

    def token_gated(self, x: Tensor | Input, weight: Tensor, y: Tensor) -> Tensor:
        given = x if isinstance(x, Input) else Input("plain", x)
        return gated_tokens(given, weight, y)

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        k = int(x.shape[1])
        out = float_tensor(rows.shape[0], k)
        return op.tensor_ir_op(take_rows(k), "take_rows", [x, rows], out)

    def spread(self, x: Tensor, row: Tensor, total: int, lowest: float) -> Tensor:
        kernel = spread(int(x.shape[1]), int(row.shape[0]), total, lowest)
        out = float_tensor(x.shape[0], total)
        return op.tensor_ir_op(kernel, "spread_columns", [x, row], out)

    def take_input_rows(self, x: Tensor | Input, rows: Tensor) -> Tensor | Input:
        if not isinstance(x, Input):
            return self.take_rows(x, rows)
        assert x.weight is None or x.weight.ndim == 1, "only x has rows"
        return replace(x, x=self.take_rows(x.x, rows), _prepared={}, _floats=None, _parts=None)

    def keep_vectors(self, x: Tensor, slot: Tensor, pages: Sequence[Tensor]) -> list[Tensor]:
        return keep_vectors(x, slot, pages, self._isa.kv_dtype)

    def kept_vectors(self, width: int, pages: Sequence[Tensor], slot: Tensor) -> Tensor:
        return kept_vectors(width, pages, slot, self._isa.kv_dtype)

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        kernel = chosen_logits(int(kept.shape[1]))
        out = float_tensor(kept.shape[0])
        return op.tensor_ir_op(kernel, "chosen_logits", [kept, rows, token], out)

    def sample(self, vocab: int, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor:
        rows, padded = logits.shape[0], int(logits.shape[1])
        ints = Tensor.placeholder([rows], "int32")
        scratch = float_tensor(rows, padded + padded // CHUNK)
        kernel = sample(vocab, padded)
        args = [logits, options, top_k]
        _, token = op.tensor_ir_op(kernel, "sample_rows", args, [scratch, ints])
        return token

    def top_tokens(self, vocab: int, logits: Tensor, rows: Tensor) -> Any:
        count = rows.shape[0]
        found = [
            Tensor.placeholder([count, MOST], "int32"),
            float_tensor(count, MOST),
            float_tensor(count),
        ]
        kernel = top_tokens(vocab, int(logits.shape[1]))
        return op.tensor_ir_op(kernel, "top_rows", [logits, rows], found)

    def edit_logits(
        self,
        vocab: int,
        place: Tensor,
        number: Tensor,
        masked: Tensor,
        allowed: Tensor,
        logits: Tensor,
    ) -> Tensor:
        kernel = edit_logits(vocab, int(logits.shape[1]))
        args = [place, number, masked, allowed, logits]
        return op.tensor_ir_inplace_op(kernel, "edit_rows", args, 4, float_tensor(*logits.shape))
