"""The operations of a model in plain Relax and float32: slow, and obvious to read.

What every other backend computes is held against this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.all_reduce import reduced
from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.operands import (
    AdapterInputs,
    AttentionBlocks,
    ExpertMatrices,
    GatedDeltaVectors,
    HeadNorms,
    LayerInputs,
    Mamba2Vectors,
    Part,
    Rwkv7Parts,
    Rwkv7Vectors,
    StateInputs,
)
from mlc_llm.backends.plain_rows import PlainRows
from mlc_llm.backends.reference.activations import activated, gated
from mlc_llm.backends.reference.adapters import adapter_sum
from mlc_llm.backends.reference.delta import gated_delta
from mlc_llm.backends.reference.experts import ExpertStack, chosen_experts, weighted_results
from mlc_llm.backends.reference.recurrent import convolved, mamba2
from mlc_llm.backends.reference.rwkv import rwkv7, token_shift
from mlc_llm.backends.reference.tensors import (
    GREEDY,
    chosen,
    columns,
    heads_of,
    lowest_kept,
    query_scales,
    rotated,
    taken,
    times,
)
from mlc_llm.backends.reference.vectors import keep_vectors, kept_vectors
from mlc_llm.kernels.reference import (
    LOWEST,
    PAGE,
    attention,
    copy_pages,
    edit_logits,
    put_rows,
    store,
)
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import Activation, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec

MOST = 20
"""Tokens that `top_tokens` finds for each row."""


def floats(*shape: object) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


class Matrix(nn.Module):  # type: ignore[misc]
    """A parameter float32 [rows, columns]."""

    def __init__(self, rows: int, columns: int) -> None:
        self.packed = nn.Parameter((rows, columns), "float32")


class ReferenceOps(PlainRows, KeptStates):
    """See `backends.ops.Ops`. An Input is a plain tensor; nothing is fast."""

    has_fast_tokens = is_fast = False

    def __init__(self, kv_dtype: str = "float32") -> None:
        self._kv_dtype = kv_dtype
        self._adapted: list[tuple[Matrix, AdapterInputs]] = []

    def adapt(self, matrices: Sequence[tuple[Matrix, AdapterInputs]]) -> None:
        self._adapted = list(matrices)

    def begin(self, fast_tokens: Tensor | None = None, *, whole: bool = False) -> None:
        """All tokens are exact."""

    def begin_layer(self) -> None:
        """No memory is shared."""

    def padded_rows(self, rows: int) -> int:
        return rows

    def attention_blocks(self, spec: AttentionSpec) -> AttentionBlocks:
        return AttentionBlocks(1, 1, 1)

    def matrix(
        self, rows: int, columns: int, kind: str, role: str, kept: range = range(0)
    ) -> Matrix:
        return Matrix(rows, columns)

    def tied_head(self, embedding: Matrix) -> Matrix:
        return embedding

    def expert_matrices(self, experts: int, rows: int, columns: int, kind: str) -> ExpertStack:
        return ExpertStack(experts, rows, columns)

    def embedding(self, table: Matrix, tokens: Tensor, scale: float) -> Tensor:
        return taken(table.packed, tokens) * scale

    def put_rows(self, x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        kernel, out = put_rows(int(x.shape[1])), floats(*x.shape)
        return op.tensor_ir_inplace_op(kernel, "put_rows", [at, rows, x], 2, out)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean = op.sum(x * x, axis=-1, keepdims=True) / float(x.shape[-1])
        return x / op.sqrt(mean + eps) * weight

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - op.sum(x, axis=-1, keepdims=True) / float(x.shape[-1])
        return self.norm(centred, weight, eps) + bias

    def layer_normed(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return self.layer_norm(x, weight, bias, eps)

    def normed_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if bias is not None:
            return op.layer_norm(x, int(weight.shape[0]), weight, bias, eps)
        return op.rms_norm(x, weight, axes=-1, epsilon=eps)

    def activated(self, activation: Activation, x: Part, width: int) -> Tensor:
        return activated(activation, columns(x, width))

    def gated(self, activation: Activation, gate: Part, up: Part, width: int) -> Tensor:
        return gated(activation, columns(gate, width), columns(up, width))

    def linear(
        self,
        matrix: Matrix,
        x: Tensor,
        add_to: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        y = op.matmul(x, op.permute_dims(matrix.packed))
        for adapted, inputs in self._adapted:
            if adapted is matrix:
                y = y + adapter_sum(x, inputs)
        y = times(y if bias is None else y + bias, scale)
        return y if add_to is None else add_to + y

    def all_reduce(self, x: Tensor) -> Tensor:
        return reduced(x)

    def add_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x + self.norm(y, weight, eps)

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return x + times(y, scale)

    def scaled(self, x: Tensor, factor: float | Tensor) -> Tensor:
        return x * factor

    def token_inputs(self, embedded: Tensor, context: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = int(weight.shape[0])
        parts = op.reshape(context, (context.shape[0], int(context.shape[1]) // width, width))
        normed = op.reshape(self.norm(parts, weight, eps), tuple(context.shape))
        return (embedded + normed) * 0.5**0.5

    def copied(self, x: Tensor) -> Tensor:
        return x  # nothing is changed in place

    def capped(self, x: Tensor, cap: float) -> Tensor:
        return op.tanh(x / cap) * cap

    def moe(self, spec: ExpertsSpec, x: Tensor, matrices: ExpertMatrices) -> Tensor:
        scores, biases = self.linear(matrices.router, x), matrices.biases
        if biases is not None:
            scores = scores + biases.router
        chosen = chosen_experts(spec, scores, matrices.choice_bias)
        return weighted_results(spec, x, chosen, matrices)

    def token_gated(self, x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        return op.sigmoid(op.sum(x * weight, axis=1, keepdims=True)) * y

    def attention(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
        learned_sinks: Tensor | None = None,
    ) -> Tensor:
        q = heads_of(qkv[0], spec.heads, spec.head_dim)
        if norms is not None:
            q = self._normed_heads(spec, q, norms.query, norms.eps)
        if spec.query_scaling is not None:
            q = q * query_scales(spec.query_scaling, layer.position)
        of_sinks = q
        if layer.rope is not None:
            at_sinks = layer.sink_position if spec.sink_query else layer.position
            q, of_sinks = rotated(q, layer.rope, layer.position), rotated(q, layer.rope, at_sinks)
        is_shared = spec.shares is not None
        pages = layer.pages if is_shared else self._stored(spec, qkv[1:], norms, layer)
        args = [q, of_sinks, pages, layer.place, layer.query_blocks, layer.page_ids, layer.window]
        args += [op.full((spec.heads,), LOWEST) if learned_sinks is None else learned_sinks]
        args += [] if layer.first_seen is None else [layer.first_seen]
        kernel = attention(
            spec.heads, spec.kv_heads, spec.head_dim, spec.scale, spec.score_cap,
            layer.first_seen is not None, self._kv_dtype,
        )  # fmt: skip
        positions = layer.page_ids.shape[0] * PAGE
        _, out = op.tensor_ir_op(kernel, "attention", args, [floats(positions), floats(*q.shape)])
        return op.reshape(out, (q.shape[0], spec.query_width))

    def _stored(
        self, spec: AttentionSpec, kv: Sequence[Part], norms: HeadNorms | None, layer: LayerInputs
    ) -> Tensor:
        """The pages with the keys and values of the step."""
        k, v = (heads_of(part, spec.kv_heads, spec.head_dim) for part in kv)
        if norms is not None:
            k = self._normed_heads(spec, k, norms.key, norms.eps)
        if spec.value_norm:
            assert norms is not None, "values are normalised where keys are"
            v = self.norm(v, op.ones((spec.head_dim,)), norms.eps)
        if layer.rope is not None:
            k = rotated(k, layer.rope, layer.position)
        kernel = store(spec.kv_heads, spec.head_dim, self._kv_dtype)
        args, shape = [k, v, layer.slot, layer.pages], self._pages_like(layer.pages)
        return op.tensor_ir_inplace_op(kernel, "store_kv", args, 3, shape)

    def _pages_like(self, pages: Tensor) -> Tensor:
        """A placeholder for pages that were changed."""
        return Tensor.placeholder(list(pages.shape), self._kv_dtype)

    def _normed_heads(self, spec: AttentionSpec, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [tokens, heads, head_dim], each head normalised alone, or all of a token together."""
        if spec.qk_norm == "head":
            return self.norm(x, weight, eps)
        together = op.reshape(x, (x.shape[0], int(weight.shape[0])))
        return op.reshape(self.norm(together, weight, eps), tuple(x.shape))

    def short_conv(
        self, spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs
    ) -> Tensor:
        b, c, u = op.split(thirds, 3, axis=1)
        return c * convolved(b * u, weight, inputs.rows, inputs.states[0])

    def mamba2(
        self, spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
    ) -> Tensor:
        return mamba2(spec, projected, vectors, inputs)

    def gated_delta(
        self,
        spec: GatedDeltaSpec,
        parts: Sequence[Part],
        vectors: GatedDeltaVectors,
        inputs: StateInputs,
    ) -> Tensor:
        return gated_delta(spec, parts, vectors, inputs)

    def token_shift(self, x: Tensor, factors: Tensor, inputs: StateInputs) -> list[Tensor]:
        return token_shift(x, factors, inputs)

    def rwkv7(
        self, spec: Rwkv7Spec, parts: Rwkv7Parts, vectors: Rwkv7Vectors, inputs: StateInputs
    ) -> Tensor:
        return rwkv7(spec, parts, vectors, inputs)

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return taken(x, rows)

    def take_input_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.take_rows(x, rows)

    def keep_vectors(self, x: Tensor, slot: Tensor, pages: Sequence[Tensor]) -> list[Tensor]:
        return keep_vectors(x, slot, pages)

    def kept_vectors(self, width: int, pages: Sequence[Tensor], slot: Tensor) -> Tensor:
        return kept_vectors(width, pages, slot)

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        one = op.unsqueeze(taken(token, rows), 1)
        inside = relax.op.clip(one._expr, 0, int(kept.shape[1]) - 1)
        found = relax.op.gather_elements(kept._expr, inside, axis=1)
        return op.squeeze(nn.wrap_nested(found, "found"), 1)

    def sample(self, vocab: int, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor:
        """The threshold below which a token is not drawn is the largest of three; see
        `library/signatures.py`."""
        logits = columns(Part(logits), vocab)
        temperature, top_p, min_p, uniform = op.split(options, 4, axis=1)
        best = op.max(logits, axis=1, keepdims=True)
        warm = op.maximum(temperature, op.full(temperature.shape, GREEDY))
        weight = op.exp((logits - best) / warm)
        order = op.sort(weight, axis=1, descending=True)
        rank = op.cumsum(op.ones(logits.shape), axis=1)
        k = op.unsqueeze(op.astype(top_k, "float32"), 1)
        k = op.where(op.equal(k, op.zeros(k.shape)), op.full(k.shape, float(vocab)), k)
        kept = op.where(op.less_equal(rank, k), order, op.zeros(order.shape))
        mass = op.cumsum(kept, axis=1)
        wanted = top_p * op.sum(kept, axis=1, keepdims=True)
        before = mass - kept  # the mass of more likely tokens
        inside = op.where(op.less(before, wanted), kept, op.full(kept.shape, 2.0))
        floor = op.maximum(lowest_kept(inside, kept), min_p)
        drawn = op.where(op.greater_equal(weight, floor), weight, op.zeros(weight.shape))
        running = op.cumsum(drawn, axis=1)
        passed = op.less_equal(running, uniform * op.sum(drawn, axis=1, keepdims=True))
        token = op.sum(op.astype(passed, "int32"), axis=1)
        return chosen(logits, op.sum(weight, axis=1), temperature, token)

    def top_tokens(self, vocab: int, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = taken(columns(Part(logits), vocab), rows)
        best = op.max(x, axis=1, keepdims=True)
        total = op.log(op.sum(op.exp(x - best), axis=1, keepdims=True)) + best
        count = min(MOST, vocab)
        value, token = op.topk(x, count, axis=1, ret_type="both", dtype="int32")
        logprob = value - total
        if count < MOST:
            token = op.pad(token, [0, 0, 0, MOST - count], value=-1)
            logprob = op.pad(logprob, [0, 0, 0, MOST - count])
        return token, logprob, op.squeeze(total, 1)

    def edit_logits(
        self,
        vocab: int,
        place: Tensor,
        number: Tensor,
        masked: Tensor,
        allowed: Tensor,
        logits: Tensor,
    ) -> Tensor:
        args = [place, number, masked, allowed, logits]
        return op.tensor_ir_inplace_op(
            edit_logits(vocab, int(logits.shape[1])), "edit_logits", args, 4, floats(*logits.shape)
        )

    def copy_pages(
        self, spec: AttentionSpec, source: Tensor, target: Tensor, pages: Tensor
    ) -> Tensor:
        kernel = copy_pages(spec.kv_heads, spec.head_dim, self._kv_dtype)
        args = [source, target, pages]
        return op.tensor_ir_inplace_op(kernel, "copy_pages", args, 2, self._pages_like(pages))
