"""One layer of a decoder, an encoder or a tower of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import Input, LayerInputs, StateInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.models.blocks import (
    Result,
    TokenBlock,
    feed_forward_block,
    mixer_block,
    norm_bias,
    normed,
)
from mlc_llm.models.merged import Part
from mlc_llm.models.product import Product
from mlc_llm.models.rwkv_blocks import ShiftedBlock
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.vectors import layer_vectors

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
        bias = norm_bias(self, name, self.model, self.ops)
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
