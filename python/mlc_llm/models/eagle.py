"""A decoder with an EAGLE head, which drafts tokens for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import LayerInputs
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.eagle_plan import eagle_vectors
from mlc_llm.models.merged import MergedLinear, Part
from mlc_llm.models.step_tensors import StepTensors

if TYPE_CHECKING:
    from mlc_llm.backends.ops import Ops
    from mlc_llm.models.spec import EagleSpec, ModelSpec

GATED = ("gate", "up")
LOWEST = -3.0e38
"""The logit of a token that the head does not know."""


class EagleHead(nn.Module):  # type: ignore[misc]
    """The layer of the head, and its own head over the vocabulary if it has one."""

    def __init__(self, model: ModelSpec, spec: EagleSpec, ops: Ops) -> None:
        self.spec, self.ops = spec, ops
        hidden, kinds, wide = model.hidden, model.kinds, spec.network.intermediate
        one, read = spec.attention, (2 if spec.taps else 1) * hidden
        self.fc = ops.matrix(hidden, (len(spec.taps) or 2) * hidden, kinds["eagle.fc"], "mlp")
        self.qkv, self.mlp = Part(), Part()
        widths = {part: one.width_of(part) for part in one.parts}
        self._to_qkv = MergedLinear(self.qkv, widths, read, model, "eagle.qkv.", ops)
        self.o = ops.matrix(hidden, one.query_width, kinds["eagle.o"], "o")
        inner = dict.fromkeys(GATED, wide)
        self._inner = MergedLinear(self.mlp, inner, hidden, model, "eagle.mlp.", ops)
        self.down = ops.matrix(hidden, wide, kinds["eagle.down"], "down")
        if spec.vocab:
            self.head = ops.matrix(spec.vocab, hidden, kinds["eagle.head"], "head")
        for name, source in eagle_vectors(model, spec).items():
            setattr(self, name, nn.Parameter(source.shape, "float32"))

    def attended(
        self, embedded: Tensor, vectors: Tensor, inputs: LayerInputs
    ) -> tuple[Tensor, object]:
        """What the layer adds to, and what its attention gives; keys and values are stored."""
        residual, read = self._read(embedded, vectors)
        if self.spec.attention.qkv_bias:
            qkv = self._to_qkv.with_biases(read, self.q_bias, self.k_bias, self.v_bias)
        else:
            qkv = self._to_qkv(read)
        return residual, self.ops.attention(self.spec.attention, qkv, None, inputs)

    def _read(self, embedded: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer adds to, and what its attention reads."""
        if not self.spec.taps:
            both, bias = self.ops.columns_beside([embedded, vectors]), None
            if self.spec.fc_bias:
                bias = self.fc_bias
            x = self.ops.linear(self.fc, both, bias=bias)
            return x, x
        normed = self._normed(vectors, self.hidden_norm)
        read = self.ops.columns_beside([self._normed(embedded, self.embedding_norm), normed])
        return normed if self.spec.adds_to_norm else vectors, read

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.ops.normed_copy(x, weight, self.spec.norm_eps)

    def forward(self, embedded: Tensor, vectors: Tensor, inputs: LayerInputs) -> Tensor:
        """The vectors that the head expects of these tokens."""
        ops, spec = self.ops, self.spec
        x, heads = self.attended(embedded, vectors, inputs)
        x = ops.linear(self.o, heads, x)
        gate, up = self._inner(ops.norm(x, self.mlp_norm, spec.norm_eps))
        y = ops.gated(spec.network.activation, gate, up, spec.network.intermediate)
        return ops.linear(self.down, y, x)

    def own_logits(self, x: Tensor, padded: int) -> Tensor:
        """Of all tokens of the model; those that the head does not know have `LOWEST`. padded:
        columns of the result."""
        spec = self.spec
        logits = self.ops.linear(self.head, self.ops.norm(x, self.norm, spec.norm_eps))
        if not spec.chooses:
            return logits
        return self.ops.spread(logits, self.row_of_token, padded, LOWEST)


class EagleDecoder(Decoder):
    """A model whose layers all keep pages, and a head."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert spec.eagle is not None
        self.eagle = EagleHead(spec, spec.eagle, ops)

    def forward(self, step: StepTensors) -> tuple[Tensor, ...]:
        """Also what the attention of the head gives, which nobody reads."""
        taps: dict[int, Tensor] = {}
        x = self._tapped_layers(step, taps)
        rows = self.ops.take_rows(x, step.logit_rows)
        heads = self._remembered(x, taps, step)
        return self._logits(rows), rows, heads

    def _tapped_layers(self, step: StepTensors, taps: dict[int, Tensor]) -> Tensor:
        """What all tokens are behind the last layer. taps: gets copies of what they are behind so
        many layers, if the head asks for them."""
        inputs, wanted = self._inputs(step), self.eagle.spec.taps
        x, by_token = self._begun(step)
        for i, layer in enumerate(self.layers):
            if i in wanted:
                taps[i] = self.ops.copied(x)
            x = layer(x, inputs[i], by_token)
        if len(self.layers) in wanted:
            taps[len(self.layers)] = x
        return x

    def draft_next(self, step: StepTensors) -> tuple[Tensor, ...]:
        inputs, vector_pages, ops = self._head_inputs(step), self._vector_pages(step), self.ops
        ops.begin(step.fast_tokens)
        vectors = ops.kept_vectors(self.spec.hidden, vector_pages, step.previous)
        x = self.eagle(self._embedded(step.tokens), vectors, inputs)
        kept = ops.keep_vectors(x, inputs.slot, vector_pages)
        return self._drafted(x), x, *kept

    def _head_inputs(self, step: StepTensors) -> LayerInputs:
        """The first token of a sequence has no vector before it, so no other token sees it."""
        layer = self._attention_inputs(step)[len(self.spec.layers)]
        return replace(layer, first_seen=self.ops.at_most_one(layer.place))

    def _vector_pages(self, step: StepTensors) -> list[Tensor]:
        return list(step.pages[-len(self.spec.vector_pages) :])

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.ops.embedding(self.embedding, tokens, 1.0)

    def _remembered(self, x: Tensor, taps: dict[int, Tensor], step: StepTensors) -> object:
        """Put the vectors of the tokens into their pages, then what the head makes of each token
        and the vector before it. x: behind the last layer."""
        ops, spec, inputs = self.ops, self.eagle.spec, self._head_inputs(step)
        ops.begin(step.fast_tokens)
        if spec.taps:
            tapped = ops.columns_beside([taps[i] for i in spec.taps])
            vectors = ops.linear(self.eagle.fc, tapped)
        else:
            vectors = self._last_normed(x)
        pages = ops.keep_vectors(vectors, inputs.slot, self._vector_pages(step))
        before = ops.kept_vectors(self.spec.hidden, pages, step.previous)
        _, heads = self.eagle.attended(self._embedded(step.tokens), before, inputs)
        return heads

    def _drafted(self, x: Tensor) -> Tensor:
        """Logits of the head's vectors."""
        spec = self.spec
        if not self.eagle.spec.vocab:
            return self._head_logits(x)
        self.ops.begin()
        return self.eagle.own_logits(x, self.ops.padded_rows(spec.vocab))
