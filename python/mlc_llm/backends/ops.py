"""The operations that a model is made of. Models call them, and each backend computes them.

Those of layers that keep a state stand in `state_ops.py`, what they take beside plain tensors in
`operands.py`. No TVM is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.state_ops import StateOps

if TYPE_CHECKING:
    from tvm.relax.frontend.nn import Tensor

    from mlc_llm.backends.operands import (
        AdapterInputs,
        AttentionBlocks,
        ExpertMatrices,
        HeadNorms,
        Input,
        LayerInputs,
        Matrix,
        Part,
    )
    from mlc_llm.models.attention_spec import AttentionSpec
    from mlc_llm.models.image_spec import Join
    from mlc_llm.models.network_spec import Activation, ExpertsSpec


class Ops(StateOps, KeptStates, Protocol):
    """The operations of a model at build time, over tensors float32 [tokens, width].

    One object serves one library.
    """

    has_fast_tokens: bool
    """Some operation made so far computes the first `fast_tokens` tokens faster, less exactly."""
    is_fast: bool
    """Some operation made so far computes every token so."""

    def begin(self, fast_tokens: Tensor | None = None, *, whole: bool = False) -> None:
        """Operations over another set of tokens follow. fast_tokens: int32 [1], how many of the
        first may be computed less exactly; None: none. whole: they are whole texts or images, of
        which no token is ever computed in a step of its own."""

    def adapt(self, matrices: Sequence[tuple[Matrix, AdapterInputs]]) -> None:
        """From here on `linear` with one of these matrices adds what adapters of tokens add."""

    def begin_layer(self) -> None:
        """Nothing that an earlier layer made is read any more, but the residual stream."""

    def padded_rows(self, rows: int) -> int:
        """Columns of the result of `linear` with a matrix of so many rows."""
        ...

    def matrix(
        self, rows: int, columns: int, kind: str, role: str, kept: range = range(0)
    ) -> Matrix:
        """kind: the file's tensor type. role: "embedding",
        "qkv", "o", "mlp", "down", "shared", "router", "conv_in", "conv_out", "ssm_in", "ssm_out",
        "delta_in", "delta_out", "mix_in", "mix_out" or "head"; some are more sensitive to rounding
        than others. kept: rows of keys and values, which all later tokens read."""

    def expert_matrices(self, experts: int, rows: int, columns: int, kind: str) -> Matrix:
        """The packed matrix of each expert, one behind the other."""

    def tied_head(self, embedding: Matrix) -> Matrix:
        """The matrix of an embedding, as `linear` takes it."""

    def embedding(self, table: Matrix, tokens: Tensor, scale: float) -> Tensor:
        """Rows of the table, times `scale`."""

    def put_rows(self, x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        """x with x[at[i]] = rows[i], in place, for each at[i] that is not -1."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Input:
        """An Input: x / sqrt(mean(x^2) + eps) * weight."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Input:
        """An Input: (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias."""

    def layer_normed(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """The same in place of x."""

    def normed_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """norm(x), or layer_norm(x) with a bias, of a few rows; it may be in place of x."""

    def activated_rows(self, activation: Activation, x: Tensor) -> Tensor:
        """activation(x), "silu", "tanh" or "gelu", of a few rows; it may be in place of x."""

    def zeros(self, width: int) -> Tensor:
        """float32 [width]."""

    def first_columns(self, x: Tensor, width: int) -> Tensor:
        """x[:, :width]."""

    def float_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x W^T + bias with a matrix of few rows, float32 [rows, columns of x]."""

    def columns_beside(self, parts: Sequence[Tensor]) -> Tensor:
        """The columns of float32 [tokens, ...] side by side."""

    def normed_copy(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """norm(x) as a tensor of its own."""

    def at_most_one(self, x: Tensor) -> Tensor:
        """min(x, 1), int32 [tokens]."""

    def spread(self, x: Tensor, row: Tensor, total: int, lowest: float) -> Tensor:
        """float32 [tokens, total]: column i is column row[i] of x, all `lowest` where row[i] is
        less than 0, and 0 behind the last row. row: float32 [at most `total`]."""

    def joined_squares(self, x: Tensor, side: int, size: int, join: Join) -> Tensor:
        """x: of the patches of an image, row by row, side * size in a row. Of each square of
        size * size patches one row, the mean of theirs or all of them side by side."""

    def gated(self, activation: Activation, gate: Part, up: Part, width: int) -> Input:
        """An Input: activation(gate) * up, each `width` columns; "clamped_swiglu" is a function of
        both (`models/network_spec.py`)."""

    def activated(self, activation: Activation, x: Part, width: int) -> Input:
        """An Input: activation(x), `width` columns."""

    def linear(
        self,
        matrix: Matrix,
        x: Input,
        add_to: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """scale * (x W^T + bias) for an Input x; added to `add_to` in place if that is given."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks, by the packed function `mlc.all_reduce` of the process."""

    def add_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """x + bias, in place of x."""

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x + norm(y), in place of x."""

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        """x + scale * y, in place of x."""

    def scaled(self, x: Tensor, factor: float | Tensor) -> Tensor:
        """x * factor, a number or a tensor of one; a tensor's number changes x in place."""

    def token_inputs(self, embedded: Tensor, context: Tensor, weight: Tensor, eps: float) -> Tensor:
        """(embedded + norm(context)) / sqrt(2), in place of `embedded` [tokens, layers * width]:
        each layer's part of the context is normalised alone, with a weight float32 [width]."""

    def copied(self, x: Tensor) -> Tensor:
        """A tensor of its own, which keeps its values when x is changed in place."""

    def capped(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""

    def moe(self, spec: ExpertsSpec, x: Input, matrices: ExpertMatrices) -> Tensor:
        """The weighted sum of what the chosen experts make of an Input, [tokens, hidden]."""

    def token_gated(self, x: Input, weight: Tensor, y: Tensor) -> Tensor:
        """sigmoid(x . weight) * y, one factor a token, in place of y. weight: float32 [columns of
        x]."""

    def attention(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
        learned_sinks: Tensor | None = None,
    ) -> Input:
        """An Input: rotates queries and keys, stores keys and values in the pages (in place), and
        attends over all that is seen: [tokens, heads * head_dim]. learned_sinks: float32 [heads],
        if the spec has them. A layer that shares keys and values has queries alone and stores
        nothing."""

    def keep_vectors(self, x: Tensor, slot: Tensor, pages: Sequence[Tensor]) -> list[Tensor]:
        """The pages, in place, with the first columns of x [tokens, width] of each token in its
        slot: as many as there are vectors' numbers (`ModelSpec.vector_pages`)."""

    def kept_vectors(self, width: int, pages: Sequence[Tensor], slot: Tensor) -> Tensor:
        """The vectors of `width` numbers in these slots; 0 for a slot of -1."""

    def attention_blocks(self, spec: AttentionSpec) -> AttentionBlocks: ...

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x[rows]."""

    def take_input_rows(self, x: Input, rows: Tensor) -> Input:
        """The same of an Input, which is not read otherwise."""

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        """kept[i, token[rows[i]]], or 0 where there is no such token."""

    def sample(self, vocab: int, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor: ...

    def top_tokens(
        self, vocab: int, logits: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def edit_logits(
        self,
        vocab: int,
        place: Tensor,
        number: Tensor,
        masked: Tensor,
        allowed: Tensor,
        logits: Tensor,
    ) -> Tensor: ...

    def copy_pages(
        self, spec: AttentionSpec, source: Tensor, target: Tensor, pages: Tensor
    ) -> Tensor: ...
