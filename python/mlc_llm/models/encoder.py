"""Any encoder, from its spec: the layers of decoders, without pages that outlive a step."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import LayerInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.models.blocks import norm_bias, normed_rows
from mlc_llm.models.decoder_layer import DecoderLayer
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.vectors import model_vectors
from mlc_llm.models.weight_plan import PROJECTIONS


class Encoder(nn.Module):  # type: ignore[misc]
    """Its public methods become the functions of a model library (`library/encoder_signatures.py`).

    Attention is that of decoders: a token sees what is not behind its place, and all tokens of a
    text are given the place of the last one, or of the last one that they see. Keys and values of a
    layer lie in pages, because the kernels read them so; all layers use the same pages, one after
    the other.
    """

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        assert spec.encoder is not None
        self.spec, self.ops = spec, ops
        self.embedding = ops.matrix(spec.vocab, spec.hidden, spec.kinds["embedding"], "embedding")
        self.layers = nn.ModuleList([DecoderLayer(spec, i, ops) for i in range(len(spec.layers))])
        for name, vector in model_vectors(spec).items():
            setattr(self, name, nn.Parameter(vector.shape, "float32"))
        if spec.encoder.labels:
            kind = spec.kinds["pair_dense"]
            self.pair_dense = ops.matrix(spec.hidden, spec.hidden, kind, "head")
        columns = spec.hidden
        for name, rows in zip(PROJECTIONS, spec.encoder.projections, strict=False):
            setattr(self, name, ops.matrix(rows, columns, spec.kinds[name], "head"))
            columns = rows

    def encode(
        self,
        tokens: Tensor,
        token_types: Tensor,
        position: Tensor,
        fast_tokens: Tensor,
        ropes: list[Tensor],
        slots: Tensor,
        places: Tensor,
        query_blocks: Tensor,
        page_ids: Tensor,
        near_places: list[Tensor],
        first_seen: list[Tensor],
        window: Tensor,
        pages: Tensor,
    ) -> Tensor:
        ops, spec = self.ops, self.spec
        ops.begin(fast_tokens, whole=True)
        x = self._embedded(tokens, token_types, position)
        for i, layer in enumerate(self.layers):
            rope, reach = spec.attention_layers[i].rope, spec.attention_layers[i].reach
            near = None if reach is None else spec.reaches.index(reach)
            inputs = LayerInputs(
                position, position, None if rope is None else ropes[rope],
                slots, places if near is None else near_places[near], query_blocks, page_ids,
                window, pages, None if near is None else first_seen[near],
            )  # fmt: skip
            x = layer(x, [inputs])
        assert spec.encoder is not None
        return normed_rows(self, "norm", x, spec, self.ops) if spec.encoder.last_norm else x

    def _embedded(self, tokens: Tensor, token_types: Tensor, position: Tensor) -> Tensor:
        ops, spec = self.ops, self.spec
        x = ops.embedding(self.embedding, tokens, spec.embedding_scale)
        if spec.learned_positions:
            x = ops.add(x, ops.take_rows(self.positions, position))
        assert spec.encoder is not None
        if spec.encoder.token_types:
            x = ops.add(x, ops.take_rows(self.token_types, token_types))
        if not spec.encoder.embedding_norm:
            return x
        bias = norm_bias(self, "embedding_norm", spec, ops)
        return ops.layer_normed(x, self.embedding_norm, bias, spec.norm_eps)

    def score(self, pooled: Tensor) -> Tensor:
        """Of a model that compares two texts."""
        assert self.spec.encoder is not None
        ops, pair = self.ops, self.spec.encoder.pair
        ops.begin()
        bias = self.pair_dense_bias if pair.bias else None
        dense = ops.linear(self.pair_dense, pooled, bias=bias)
        dense = ops.activated_rows(pair.activation, dense)
        if pair.norm:
            dense = normed_rows(self, "pair_norm", dense, self.spec, self.ops)
        return ops.float_product(dense, self.pair_out, self.pair_out_bias)

    def project(self, pooled: Tensor) -> Tensor:
        """Of a model whose vectors of texts are multiplied by matrices."""
        assert self.spec.encoder is not None
        self.ops.begin()
        for name, rows in zip(PROJECTIONS, self.spec.encoder.projections, strict=False):
            pooled = self.ops.linear(getattr(self, name), pooled)
            if self.ops.padded_rows(rows) != rows:
                pooled = self.ops.first_columns(pooled, rows)
        return pooled
