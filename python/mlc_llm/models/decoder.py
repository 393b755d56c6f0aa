"""Any decoder, from its spec: it says what is computed; `ops` (see `backends/base.py`) says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.base import Ops
from mlc_llm.backends.operands import FirstLayer, Input, LayerInputs, StateInputs
from mlc_llm.models.blocks import (
    Result,
    TokenBlock,
    feed_forward_block,
    mixer_block,
    norm_bias,
    normed,
    normed_rows,
)
from mlc_llm.models.chooser import TokenChooser
from mlc_llm.models.merged import Part
from mlc_llm.models.product import Product
from mlc_llm.models.rwkv_blocks import ShiftedBlock
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.vectors import layer_vectors, model_vectors

MixerInputs: TypeAlias = LayerInputs | StateInputs


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Mixers and a feed-forward network, each added to the residual stream."""

    def __init__(self, model: ModelSpec, index: int, ops: Ops) -> None:
        self.model, self.spec, self.ops = model, model.layers[index], ops
        assert model.norm == "rms" or not self.spec.post_norms, "no part has a layer norm"
        assert model.norm == "layer" or not self.spec.sum_norms, "no sum has an RMS norm"
        for name, vector in layer_vectors(model, self.spec).items():
            setattr(self, name, nn.Parameter(vector.shape, "float32"))
        self.qkv, self.mlp = Part(), Part()
        self.mixers = [mixer_block(self, model, index, one, ops) for one in self.spec.mixers]
        has_network = self.spec.has_network
        self.feed_forward = feed_forward_block(self, model, index, ops) if has_network else None
        self.token = TokenBlock(self, model, index, ops) if self.spec.token_input else None
        self.thins = not self.spec.feed_forward.state_shapes
        """It can compute some tokens only; else its network reads what it is given of all."""

    def forward(
        self,
        x: Tensor,
        inputs: Sequence[MixerInputs],
        token_inputs: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """inputs: of each mixer, then of a network that keeps a state. token_inputs: of all layers,
        if the model has them. kept: the tokens whose result is wanted; the others are computed as
        far as mixers read them."""
        x = self._halves(x, inputs, kept)
        if self.token is not None:
            if kept is not None:
                token_inputs = self.ops.take_rows(token_inputs, kept)
            y = self.token(x, token_inputs)
            x = self.ops.add_norm(x, y, self.token_post_norm, self.model.norm_eps)
        return self.ops.scaled(x, self.output_scale) if self.spec.output_scale else x

    def _halves(self, x: Tensor, inputs: Sequence[MixerInputs], kept: Tensor | None) -> Tensor:
        self.ops.begin_layer()
        read = self._normed(x, "attention_norm") if self.spec.mixer_norm else x
        # All parts have read x before anything is added to it, which may be in place.
        count = len(self.mixers)
        mixed = [mix(read, given) for mix, given in zip(self.mixers, inputs[:count], strict=True)]
        if kept is not None:
            self.ops.begin()  # the kept tokens are few: all of them are computed exactly
            x, mixed = self.ops.take_rows(x, kept), [self._kept(one, kept) for one in mixed]
            read = self._normed(x, "attention_norm") if self.spec.mixer_norm else x
        if self.feed_forward is None:
            return self._add_all(x, mixed)
        if self.spec.parallel:
            fed = self._fed(read if self.spec.one_norm else self._normed(x, "mlp_norm"), inputs)
            return self._add(self._add_all(x, mixed), fed, "mlp")
        x = self._add_all(x, mixed)
        return self._add(x, self._fed(self._normed(x, "mlp_norm"), inputs), "mlp")

    def _fed(self, x: Input, inputs: Sequence[MixerInputs]) -> Result:
        """What the network gives. inputs: those of the layer."""
        network = self.feed_forward
        assert network is not None
        if not isinstance(network, ShiftedBlock):
            return network(x)
        given = inputs[-1]
        assert isinstance(given, StateInputs), "the network keeps a state"
        return network(x, given)

    def _kept(self, result: Result, rows: Tensor) -> Result:
        """The result for these tokens alone."""
        if isinstance(result, Product):
            return result._replace(x=self.ops.take_input_rows(result.x, rows))
        return self.ops.take_rows(result, rows)

    def _normed(self, x: Tensor, name: str) -> Input:
        """What a block reads."""
        return normed(self, name, x, self.model, self.ops) if self.spec.pre_norms else x

    def _add_all(self, x: Tensor, mixed: Sequence[Result]) -> Tensor:
        for result in mixed:
            x = self._add(x, result, "attention")
        return x

    def _add(self, x: Tensor, result: Result, half: str) -> Tensor:
        """x + result, with norms before or behind the sum as the spec says."""
        x = self._sum(x, result, half)
        if not self.spec.sum_norms:
            return x
        name = f"{half}_sum_norm"
        bias = norm_bias(self, name, self.model)
        return self.ops.layer_normed(x, getattr(self, name), bias, self.model.norm_eps)

    def _sum(self, x: Tensor, result: Result, half: str) -> Tensor:
        """x + result, with a norm and a factor before the sum if the spec says so."""
        ops, scale, has_norm = self.ops, self.spec.residual_scale, self.spec.post_norms
        is_product = isinstance(result, Product)
        if is_product and not has_norm and not result.is_part:
            return ops.linear(result.matrix, result.x, x, bias=result.bias, scale=scale)
        y = result.value(ops) if is_product else result
        if not has_norm:
            return ops.add(x, y, scale)
        weight = getattr(self, f"{half}_post_norm")
        weight = weight if scale == 1.0 else ops.scaled(weight, scale)
        return ops.add_norm(x, y, weight, self.model.norm_eps)


class BaseDecoder(TokenChooser):
    """Its public methods become the functions of a model library (`library/signatures.py`)."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        self.images: tuple[Tensor, Tensor] | None = None
        """Tokens that have other vectors than those of the table, and these vectors."""
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

    def _computed(
        self,
        tokens: Tensor,
        fast_tokens: Tensor,
        position: Tensor,
        logit_rows: Tensor,
        inputs: Mapping[int, Sequence[MixerInputs]],
    ) -> tuple[Tensor, Tensor]:
        """The logits, and the hidden vectors that they are made of. inputs: of each mixer of each
        layer."""
        x, by_token = self._begun(tokens, fast_tokens, position)
        *layers, last = self.layers
        for i, layer in enumerate(layers):
            x = layer(x, inputs[i], by_token)
        of_last = inputs[len(layers)], by_token
        # The slots of adapters are those of all tokens, and ranks but the first want no logits.
        if self.spec.adapted or self.spec.shards > 1 or not last.thins:
            x = self.ops.take_rows(last(x, *of_last), logit_rows)
        else:
            x = last(x, *of_last, logit_rows)
        return self._logits(x), x

    def _begun(
        self, tokens: Tensor, fast_tokens: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """What the first layer reads, and what all layers read of the tokens."""
        ops, spec = self.ops, self.spec
        ops.begin(fast_tokens)
        x = ops.embedding(self.embedding, tokens, spec.embedding_scale)
        if spec.embedding_norm:
            bias = norm_bias(self, "embedding_norm", spec)
            x = ops.layer_normed(x, self.embedding_norm, bias, spec.norm_eps)
        if self.images is not None:
            x = ops.put_rows(x, *self.images)
        by_token = self._token_inputs(tokens, x) if spec.token_inputs else None
        if spec.learned_positions:
            x = ops.add(x, ops.take_rows(self.positions, position))
        return x, by_token

    def _computed_layers(
        self,
        tokens: Tensor,
        fast_tokens: Tensor,
        position: Tensor,
        inputs: Mapping[int, Sequence[MixerInputs]],
        taps: dict[int, Tensor],
    ) -> Tensor:
        """What all tokens are behind the last layer. taps: gets copies of what they are behind so
        many layers, if an EAGLE head asks for them."""
        x, by_token = self._begun(tokens, fast_tokens, position)
        wanted = () if self.spec.eagle is None else self.spec.eagle.taps
        for i, layer in enumerate(self.layers):
            if i in wanted:
                taps[i] = self.ops.copied(x)
            x = layer(x, inputs[i], by_token)
        if len(self.layers) in wanted:
            taps[len(self.layers)] = x
        return x

    def _token_inputs(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Of all layers. x: the embedded tokens."""
        ops, spec, weight = self.ops, self.spec, self.token_norm
        embedded = ops.embedding(self.token_table, tokens, int(weight.shape[0]) ** 0.5)
        context = ops.scaled(ops.linear(self.token_context, x), spec.hidden**-0.5)
        return ops.token_inputs(embedded, context, weight, spec.norm_eps)

    def _paged(
        self,
        position: Tensor,
        sink_position: Tensor,
        ropes: list[Tensor],
        tables: Sequence[list[Tensor]],
        pages: list[Tensor],
    ) -> dict[int, list[MixerInputs]]:
        """Inputs of the layers of attention. tables: `LayerInputs.slot` to `window` of each group,
        one list a field."""
        groups = self.spec.group_of_layer()
        found: dict[int, list[MixerInputs]] = {}
        owned = dict(zip(self.spec.paged_layers, pages, strict=True))
        for i, one in self.spec.attention_layers.items():
            of_layer = owned[i if one.shares is None else one.shares]
            rope = None if one.rope is None else ropes[one.rope]
            slot, place, blocks, ids, window = (table[groups[i]] for table in tables)
            of_attention = LayerInputs(
                position, sink_position, rope, slot, place, blocks, ids, window, of_layer
            )
            found[i] = [of_attention]
        return found

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


class Decoder(BaseDecoder):
    """A model whose layers all keep pages."""

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        sink_position: Tensor,
        fast_tokens: Tensor,
        logit_rows: Tensor,
        ropes: list[Tensor],
        slots: list[Tensor],
        places: list[Tensor],
        query_blocks: list[Tensor],
        page_ids: list[Tensor],
        windows: list[Tensor],
        pages: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        tables = (slots, places, query_blocks, page_ids, windows)
        inputs = self._paged(position, sink_position, ropes, tables, pages)
        return self._computed(tokens, fast_tokens, position, logit_rows, inputs)


class RecurrentDecoder(BaseDecoder):
    """A model some of whose layers keep a state."""

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        sink_position: Tensor,
        fast_tokens: Tensor,
        logit_rows: Tensor,
        ropes: list[Tensor],
        slots: list[Tensor],
        places: list[Tensor],
        query_blocks: list[Tensor],
        page_ids: list[Tensor],
        windows: list[Tensor],
        pages: list[Tensor],
        state_rows: Tensor,
        states: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        tables = (slots, places, query_blocks, page_ids, windows)
        inputs = self._paged(position, sink_position, ropes, tables, pages)
        left, of_first = list(states), FirstLayer()
        for i, layer in enumerate(self.spec.layers):
            for part in layer.states:
                here, left = tuple(left[: len(part)]), left[len(part) :]
                inputs.setdefault(i, []).append(StateInputs(state_rows, here, of_first))
        return self._computed(tokens, fast_tokens, position, logit_rows, inputs)


def decoder_of(spec: ModelSpec, ops: Ops) -> BaseDecoder:
    """The decoder whose `forward` takes what the layers of the model need."""
    return RecurrentDecoder(spec, ops) if spec.recurrent_layers else Decoder(spec, ops)
