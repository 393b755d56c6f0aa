"""Any decoder, from its spec: it says what is computed; `ops` (see `backends/base.py`) says how."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.base import HeadNorms, LayerInputs, Ops
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import layer_vectors


class MergedLinear:
    """Matrices that share an input: one product where their tensor types agree, else one each.

    `owner` gets them as parameters, named as in `kinds` behind `prefix`.
    """

    def __init__(
        self,
        owner: Any,
        parts: dict[str, int],
        columns: int,
        spec: ModelSpec,
        prefix: str,
        ops: Ops,
    ) -> None:
        self._ops, joined = ops, "_".join(parts)
        self._is_joined = f"{prefix}{joined}" in spec.kinds
        self._widths = list(parts.values())
        sizes = {joined: sum(self._widths)} if self._is_joined else parts
        role = prefix.rstrip(".").split(".")[-1]
        self._matrices = []
        for name, rows in sizes.items():
            matrix = ops.matrix(rows, columns, spec.kinds[prefix + name], role)
            setattr(owner, name, matrix)
            self._matrices.append(matrix)

    def __call__(self, x: Any) -> list[tuple[Tensor, int]]:
        """(tensor, first column) of each part; the tensors are one and the same if joined."""
        results = [self._ops.linear(matrix, x) for matrix in self._matrices]
        if not self._is_joined:
            return [(result, 0) for result in results]
        starts = [sum(self._widths[:i]) for i in range(len(self._widths))]
        return [(results[0], start) for start in starts]


class Part(nn.Module):  # type: ignore[misc]
    """A name between a layer and its matrices, as in `layers.0.qkv.q_k_v`."""


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Attention, then a gated feed-forward network, each added to the residual stream."""

    def __init__(self, model: ModelSpec, index: int, ops: Ops) -> None:
        self.eps, self.spec, self.ops = model.norm_eps, model.layers[index], ops
        hidden, prefix, spec = model.hidden, f"layers.{index}.", self.spec
        for name, (_, size) in layer_vectors(hidden, spec).items():
            setattr(self, name, nn.Parameter((size,), "float32"))
        one, wide = spec.attention, spec.intermediate
        self.qkv, self.mlp = Part(), Part()
        widths = {"q": one.query_width, "k": one.kv_width, "v": one.kv_width}
        self.to_qkv = MergedLinear(self.qkv, widths, hidden, model, f"{prefix}qkv.", ops)
        self.o = ops.matrix(hidden, one.query_width, model.kinds[f"{prefix}o"], "o")
        both = {"gate": wide, "up": wide}
        self.to_gate_up = MergedLinear(self.mlp, both, hidden, model, f"{prefix}mlp.", ops)
        self.down = ops.matrix(hidden, wide, model.kinds[f"{prefix}down"], "down")

    def forward(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        ops, spec = self.ops, self.spec
        ops.begin_layer()
        qkv = self.to_qkv(ops.norm(x, self.attention_norm, self.eps))
        heads = ops.attention(spec.attention, qkv, self._head_norms(), inputs)
        x = self._add(x, self.o, heads, "attention_post_norm")
        gate, up = self.to_gate_up(ops.norm(x, self.mlp_norm, self.eps))
        gated = ops.gated(spec.activation, gate, up, spec.intermediate)
        return self._add(x, self.down, gated, "mlp_post_norm")

    def _add(self, x: Tensor, matrix: Any, y: Any, post_norm: str) -> Tensor:
        """x + matrix y, with a norm before the sum if the spec says so."""
        if not self.spec.post_norms:
            return self.ops.linear(matrix, y, add_to=x)
        return self.ops.add_norm(x, self.ops.linear(matrix, y), getattr(self, post_norm), self.eps)

    def _head_norms(self) -> HeadNorms | None:
        if not self.spec.attention.qk_norm:
            return None
        return HeadNorms(self.q_norm, self.k_norm, self.eps)


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
            inputs = LayerInputs(
                position,
                sink_position,
                ropes[spec.layers[i].attention.rope],
                slots[group],
                places[group],
                query_blocks[group],
                page_ids[group],
                windows[group],
                pages[i],
            )
            x = layer(x, inputs)
        last = ops.take_rows(x, logit_rows)
        ops.begin()  # the rows of the head are not those of the layers
        head = ops.tied_head(self.embedding) if spec.tied_head else self.head
        return ops.linear(head, ops.norm(last, self.norm, spec.norm_eps))

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
            ops.copy_pages(layer.attention, sources[groups[i]], targets[groups[i]], pages[i])
            for i, layer in layers
        ]
