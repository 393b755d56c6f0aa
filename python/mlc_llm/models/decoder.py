"""Any decoder, from its spec: it says what is computed; `ops` (see `backends/base.py`) says how."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.base import LayerInputs, Ops
from mlc_llm.models.blocks import AttentionBlock, Part, Product, Result, feed_forward_block
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import layer_vectors


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """A mixer, then a feed-forward network, each added to the residual stream."""

    def __init__(self, model: ModelSpec, index: int, ops: Ops) -> None:
        self.eps, self.spec, self.ops = model.norm_eps, model.layers[index], ops
        for name, vector in layer_vectors(model.hidden, self.spec).items():
            setattr(self, name, nn.Parameter((vector.size,), "float32"))
        self.qkv, self.mlp = Part(), Part()
        self.mixer = AttentionBlock(self, model, index, ops)
        self.feed_forward = feed_forward_block(self, model, index, ops)

    def forward(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        self.ops.begin_layer()
        x = self._add(x, self.mixer(self._normed(x, "attention_norm"), inputs), "attention")
        return self._add(x, self.feed_forward(self._normed(x, "mlp_norm")), "mlp")

    def _normed(self, x: Tensor, name: str) -> Any:
        """The Input of a block."""
        return self.ops.norm(x, getattr(self, name), self.eps) if self.spec.pre_norms else x

    def _add(self, x: Tensor, result: Result, half: str) -> Tensor:
        """x + result, with a norm and a factor before the sum if the spec says so."""
        ops, scale, has_norm = self.ops, self.spec.residual_scale, self.spec.post_norms
        is_product = isinstance(result, Product)
        if is_product and result.bias is None and scale == 1.0 and not has_norm:
            return ops.linear(result.matrix, result.x, add_to=x)
        y = result.value(ops) if is_product else result
        if not has_norm:
            return ops.add(x, ops.scaled(y, scale))
        weight = getattr(self, f"{half}_post_norm")
        return ops.add_norm(x, y, weight if scale == 1.0 else ops.scaled(weight, scale), self.eps)


class Decoder(nn.Module):  # type: ignore[misc]
    """Its public methods become the functions of a model library (`library/signatures.py`)."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        self.spec, self.ops = spec, ops
        self.embedding = ops.matrix(spec.vocab, spec.hidden, spec.kinds["embedding"], "embedding")
        self.layers = nn.ModuleList([DecoderLayer(spec, i, ops) for i in range(len(spec.layers))])
        self.norm = nn.Parameter((spec.hidden,), "float32")
        if not spec.tied_head:
            self.head = ops.matrix(spec.vocab, spec.hidden, spec.kinds["head"], "head")

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
    ) -> Tensor:
        ops, spec = self.ops, self.spec
        groups = spec.group_of_layer()
        ops.begin(fast_tokens)
        x = ops.embedding(self.embedding, tokens, spec.embedding_scale)
        for i, layer in enumerate(self.layers):
            group = groups[i]
            rope = spec.layers[i].mixer.rope
            inputs = LayerInputs(
                position,
                sink_position,
                None if rope is None else ropes[rope],
                slots[group],
                places[group],
                query_blocks[group],
                page_ids[group],
                windows[group],
                pages[i],
            )
            x = layer(x, inputs)
        return self._logits(ops.take_rows(x, logit_rows))

    def _logits(self, x: Tensor) -> Tensor:
        ops, spec = self.ops, self.spec
        ops.begin()  # the rows of the head are not those of the layers
        head = ops.tied_head(self.embedding) if spec.tied_head else self.head
        logits = ops.linear(head, ops.norm(x, self.norm, spec.norm_eps))
        if spec.logit_scale != 1.0:
            logits = ops.scaled(logits, spec.logit_scale)
        return logits if spec.logit_cap is None else ops.capped(logits, spec.logit_cap)

    def sample(self, logits: Tensor, options: Tensor, top_k: Tensor) -> Any:
        return self.ops.sample(self.spec.tokens, logits, options, top_k)

    def top_tokens(self, logits: Tensor, rows: Tensor) -> Any:
        return self.ops.top_tokens(self.spec.tokens, logits, rows)

    def edit_logits(
        self, place: Tensor, number: Tensor, masked: Tensor, allowed: Tensor, logits: Tensor
    ) -> Any:
        return self.ops.edit_logits(self.spec.tokens, place, number, masked, allowed, logits)

    def keep_logits(self, logits: Tensor, rows: Tensor) -> Tensor:
        return self.ops.take_rows(logits, rows)

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        return self.ops.chosen_logits(kept, rows, token)

    def copy_pages(self, sources: list[Tensor], targets: list[Tensor], pages: list[Tensor]) -> Any:
        ops, groups = self.ops, self.spec.group_of_layer()
        layers = enumerate(self.spec.layers)
        return [
            ops.copy_pages(layer.mixer, sources[groups[i]], targets[groups[i]], pages[i])
            for i, layer in layers
        ]
