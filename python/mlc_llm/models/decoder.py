"""Any decoder, from its spec: it says what is computed; `ops` (see `backends/ops.py`) says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import FirstLayer, Input, LayerInputs, StateInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.adapted import adapter_inputs
from mlc_llm.models.blocks import norm_bias, normed, normed_rows
from mlc_llm.models.chooser import TokenChooser
from mlc_llm.models.decoder_layer import DecoderLayer, MixerInputs
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.step_tensors import StepTensors
from mlc_llm.models.vectors import model_vectors


class Decoder(TokenChooser):
    """Its public methods become the functions of a model library (`library/signatures.py`)."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        if spec.sight and (spec.recurrent_layers or spec.adapted or spec.has_sink_queries):
            words = "a decoder that takes images has no states, adapters or windows of the engine"
            raise UnsupportedModel(words)
        self.embedding = ops.matrix(spec.vocab, spec.hidden, spec.kinds["embedding"], "embedding")
        self.layers = nn.ModuleList([DecoderLayer(spec, i, ops) for i in range(len(spec.layers))])
        for name, vector in model_vectors(spec).items():
            setattr(self, name, nn.Parameter(vector.shape, "float32"))
        if spec.token_inputs:
            size, kinds = spec.token_inputs, spec.kinds
            self.token_table = ops.matrix(spec.vocab, size, kinds["token_table"], "embedding")
            self.token_context = ops.matrix(size, spec.hidden, kinds["token_context"], "mlp")
        if not spec.tied_head:
            self.head = ops.matrix(spec.vocab, spec.hidden, spec.kinds["head"], "head")

    def forward(self, step: StepTensors) -> tuple[Tensor, ...]:
        """The logits, and the hidden vectors that they are made of."""
        if self.spec.adapted:
            given = adapter_inputs(self, self.spec, step.adapter_slots, step.adapters)
            self.ops.adapt(given)
        x = self._computed(step, self._inputs(step))
        return self._logits(x), x

    def _computed(self, step: StepTensors, inputs: Mapping[int, Sequence[MixerInputs]]) -> Tensor:
        """What the tokens with logits are behind the last layer. inputs: of each mixer of each
        layer."""
        x, by_token = self._begun(step)
        *layers, last = self.layers
        for i, layer in enumerate(layers):
            x = layer(x, inputs[i], by_token)
        of_last = inputs[len(layers)], by_token
        # The slots of adapters are those of all tokens, and ranks but the first want no logits.
        if self.spec.adapted or self.spec.shards > 1 or not last.thins:
            return self.ops.take_rows(last(x, *of_last), step.logit_rows)
        return last(x, *of_last, step.logit_rows)

    def _begun(self, step: StepTensors) -> tuple[Tensor, Tensor | None]:
        """What the first layer reads, and what all layers read of the tokens."""
        ops, spec = self.ops, self.spec
        ops.begin(step.fast_tokens)
        x = ops.embedding(self.embedding, step.tokens, spec.embedding_scale)
        if spec.embedding_norm:
            bias = norm_bias(self, "embedding_norm", spec, ops)
            x = ops.layer_normed(x, self.embedding_norm, bias, spec.norm_eps)
        if spec.sight:
            x = ops.put_rows(x, step.vector_at, step.vectors)
        by_token = self._token_inputs(step.tokens, x) if spec.token_inputs else None
        if spec.learned_positions:
            x = ops.add(x, ops.take_rows(self.positions, step.position))
        return x, by_token

    def _token_inputs(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Of all layers. x: the embedded tokens."""
        ops, spec, weight = self.ops, self.spec, self.token_norm
        embedded = ops.embedding(self.token_table, tokens, int(weight.shape[0]) ** 0.5)
        context = ops.scaled(ops.linear(self.token_context, x), spec.hidden**-0.5)
        return ops.token_inputs(embedded, context, weight, spec.norm_eps)

    def _inputs(self, step: StepTensors) -> dict[int, list[MixerInputs]]:
        """Of each layer: those of its attention, then of each part that keeps a state."""
        found: dict[int, list[MixerInputs]] = {
            i: [one] for i, one in self._attention_inputs(step).items()
        }
        left, of_first = list(step.states), FirstLayer()
        for i, keeper in self.spec.keepers:
            count = len(self.ops.kept(keeper))
            here, left = tuple(left[:count]), left[count:]
            found.setdefault(i, []).append(StateInputs(step.state_rows, here, of_first))
        return found

    def _attention_inputs(self, step: StepTensors) -> dict[int, LayerInputs]:
        groups = self.spec.group_of_layer()
        first_seen = dict(zip(self.spec.seeing_groups, step.first_seen, strict=True))
        owned = dict(zip(self.spec.paged_layers, step.pages, strict=True))
        return {
            i: LayerInputs(
                position=step.position,
                sink_position=step.sink_position,
                rope=None if one.rope is None else step.ropes[one.rope],
                slot=step.slots[groups[i]],
                place=step.places[groups[i]],
                query_blocks=step.query_blocks[groups[i]],
                page_ids=step.page_ids[groups[i]],
                window=step.windows[groups[i]],
                pages=owned[i if one.shares is None else one.shares],
                first_seen=first_seen.get(groups[i]),
            )
            for i, one in self.spec.attention_layers.items()
        }

    def _logits(self, x: Tensor) -> Tensor:
        return self._head_logits(normed(self, "norm", x, self.spec, self.ops))

    def _head_logits(self, x: Input) -> Tensor:
        """x: behind the last norm."""
        ops, spec = self.ops, self.spec
        ops.begin()  # the rows of the head are not those of the layers
        head = ops.tied_head(self.embedding) if spec.tied_head else self.head
        logits = ops.linear(head, x)
        if spec.logit_scale != 1.0:
            logits = ops.scaled(logits, spec.logit_scale)
        return logits if spec.logit_cap is None else ops.capped(logits, spec.logit_cap)

    def last_hidden(self, hidden: Tensor, rows: Tensor) -> Tensor:
        return self._last_normed(self.ops.take_rows(hidden, rows))

    def _last_normed(self, x: Tensor) -> Tensor:
        """x behind the last norm."""
        return normed_rows(self, "norm", x, self.spec, self.ops)

    def copy_pages(
        self, sources: list[Tensor], targets: list[Tensor], pages: list[Tensor]
    ) -> list[Tensor]:
        groups = self.spec.group_of_layer()
        return [
            self.ops.copy_pages(one, sources[groups[i]], targets[groups[i]], of_layer)
            for (i, one), of_layer in zip(self.spec.paged_layers.items(), pages, strict=True)
        ]
