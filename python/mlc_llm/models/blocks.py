"""The parts of a decoder layer: how tokens see each other, and what each computes for itself."""

from __future__ import annotations

from typing import TypeAlias

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import (
    ExpertBiases,
    ExpertMatrices,
    HeadNorms,
    Input,
    LayerInputs,
    StateInputs,
)
from mlc_llm.backends.operands import Part as Columns
from mlc_llm.backends.ops import Ops
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.delta_block import GatedDeltaBlock
from mlc_llm.models.merged import MergedLinear, Part
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec, FeedForward
from mlc_llm.models.product import Product
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.recurrent_blocks import Mamba2Block, ShortConvBlock
from mlc_llm.models.rwkv_blocks import Rwkv7Block, ShiftedBlock
from mlc_llm.models.spec import Mixer, ModelSpec

Result: TypeAlias = Product | Tensor
"""What a block gives, float32 [tokens, hidden]."""


class AttentionBlock:
    """Queries, keys and values; attention over the pages; the output matrix.

    `layer` has the vectors, and gets the matrices `qkv` and `o`.
    """

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: AttentionSpec, ops: Ops
    ) -> None:
        self._layer, self._ops, self._eps, self._spec = layer, ops, model.norm_eps, spec
        self._is_part = model.shards > 1
        prefix, hidden = f"layers.{index}.", model.hidden
        widths = {part: spec.width_of(part) for part in spec.parts}
        self._to_qkv = MergedLinear(layer.qkv, widths, hidden, model, f"{prefix}qkv.", ops)
        layer.o = ops.matrix(hidden, spec.query_width, model.kinds[f"{prefix}o"], "o")

    def __call__(self, x: Input, inputs: LayerInputs | StateInputs) -> Product:
        assert isinstance(inputs, LayerInputs), "a layer of attention keeps pages"
        layer, spec = self._layer, self._spec
        if spec.qkv_bias:
            qkv = self._to_qkv.with_biases(x, layer.q_bias, layer.k_bias, layer.v_bias)
        else:
            qkv = self._to_qkv(x)
        gate = qkv.pop() if spec.gated else None
        if spec.values_are_keys:
            qkv = [*qkv, qkv[1]]
        sinks = layer.learned_sinks if spec.learned_sinks else None
        heads = self._ops.attention(spec, qkv, self._head_norms(), inputs, sinks)
        if gate is not None:
            heads = self._ops.gated("sigmoid", gate, Columns(heads), spec.query_width)
        bias = layer.o_bias if spec.output_bias else None
        return Product(layer.o, heads, bias, self._is_part)

    def _head_norms(self) -> HeadNorms | None:
        if not self._spec.qk_norm:
            return None
        layer, is_shared = self._layer, self._spec.shares is not None
        return HeadNorms(layer.q_norm, layer.q_norm if is_shared else layer.k_norm, self._eps)


class DenseBlock:
    """A feed-forward network. `layer` gets its matrices: `name`.* and `down`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: DenseSpec, name: str, ops: Ops
    ) -> None:
        self._layer, self._spec, self._ops = layer, spec, ops
        self._is_part = model.shards > 1
        prefix, owner = f"layers.{index}.", getattr(layer, name)
        rows = dict.fromkeys(("gate", "up") if spec.gated else ("up",), spec.intermediate)
        self._down = "down" if name == "mlp" else f"{name}_down"
        self._inner = MergedLinear(owner, rows, model.hidden, model, f"{prefix}{name}.", ops)
        kind = model.kinds[prefix + self._down]
        setattr(layer, self._down, ops.matrix(model.hidden, spec.intermediate, kind, "down"))

    def __call__(self, x: Input) -> Product:
        layer, spec = self._layer, self._spec
        down_bias = layer.down_bias if spec.bias else None
        down = getattr(layer, self._down)
        return Product(down, self._activated(x), down_bias, self._is_part)

    def _activated(self, x: Input) -> Input:
        """What `down` multiplies."""
        layer, spec = self._layer, self._spec
        if spec.bias:
            gate_bias = (layer.gate_bias,) if spec.gated else ()
            parts = self._inner.with_biases(x, *gate_bias, layer.up_bias)
        else:
            parts = self._inner(x)
        if spec.gated:
            gate, up = parts
            return self._ops.gated(spec.activation, gate, up, spec.intermediate)
        return self._ops.activated(spec.activation, parts[0], spec.intermediate)


class ExpertsBlock:
    """A mixture of experts. `layer` has the biases, and gets `router`, `experts` and, if there is
    one, `shared`."""

    def __init__(
        self, layer: nn.Module, model: ModelSpec, index: int, spec: ExpertsSpec, ops: Ops
    ) -> None:
        self._layer, self._spec, self._ops = layer, spec, ops
        prefix, count, wide = f"layers.{index}.", spec.num_experts, spec.intermediate
        layer.router = ops.matrix(count, model.hidden, model.kinds[f"{prefix}router"], "router")
        layer.experts = Part()
        up = (wide, model.hidden)
        for name, (rows, columns) in {"gate": up, "up": up, "down": up[::-1]}.items():
            kind = model.kinds[f"{prefix}experts.{name}"]
            setattr(layer.experts, name, ops.expert_matrices(count, rows, columns, kind))
        self._shared = None
        if spec.shared is not None:
            layer.shared = Part()
            self._shared = DenseBlock(layer, model, index, spec.shared, "shared", ops)

    def __call__(self, x: Input) -> Tensor:
        layer, experts = self._layer, self._layer.experts
        biases = None
        if self._spec.bias:
            biases = ExpertBiases(
                layer.router_bias, layer.expert_gate_bias, layer.expert_up_bias,
                layer.expert_down_bias,
            )  # fmt: skip
        choice_bias = layer.choice_bias if self._spec.choice_bias else None
        matrices = ExpertMatrices(
            layer.router, experts.gate, experts.up, experts.down, biases, choice_bias
        )
        y = self._ops.moe(self._spec, x, matrices)
        if self._shared is None:
            return y
        shared = self._shared(x).value(self._ops)
        if self._spec.shared_gate:
            shared = self._ops.token_gated(x, layer.shared_gate, shared)
        return self._ops.add(y, shared)


class TokenBlock:
    """What a layer makes of its input by token. `layer` gets `token_gate` and `token_out`."""

    def __init__(self, layer: nn.Module, model: ModelSpec, index: int, ops: Ops) -> None:
        self._layer, self._ops, self._width = layer, ops, model.layers[index].token_input
        self._first = sum(one.token_input for one in model.layers[:index])
        prefix, hidden = f"layers.{index}.", model.hidden
        kind = model.kinds[f"{prefix}token_gate"]
        layer.token_gate = ops.matrix(self._width, hidden, kind, "mlp")
        kind = model.kinds[f"{prefix}token_out"]
        layer.token_out = ops.matrix(hidden, self._width, kind, "down")

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """inputs: of all layers, side by side."""
        ops, layer, width = self._ops, self._layer, self._width
        gate = Columns(ops.linear(layer.token_gate, x), 0)
        own = Columns(inputs, self._first)
        return ops.linear(layer.token_out, ops.gated("gelu_tanh", gate, own, width))


def normed(owner: nn.Module, name: str, x: Tensor, model: ModelSpec, ops: Ops) -> Input:
    """x behind a norm of the model's kind, whose vectors the owner has under this name."""
    weight = getattr(owner, name)
    if model.norm == "layer":
        return ops.layer_norm(x, weight, norm_bias(owner, name, model, ops), model.norm_eps)
    return ops.norm(x, weight, model.norm_eps)


def norm_bias(owner: nn.Module, name: str, model: ModelSpec, ops: Ops) -> Tensor:
    """Of a layer norm."""
    return getattr(owner, f"{name}_bias") if model.norm_bias else ops.zeros(model.hidden)


def normed_rows(owner: nn.Module, name: str, x: Tensor, model: ModelSpec, ops: Ops) -> Tensor:
    """The same as a plain tensor, which may take the place of x: for a few rows."""
    bias = norm_bias(owner, name, model, ops) if model.norm == "layer" else None
    return ops.normed_rows(x, getattr(owner, name), bias, model.norm_eps)


def mixer_block(
    layer: nn.Module, model: ModelSpec, index: int, spec: Mixer, ops: Ops
) -> AttentionBlock | ShortConvBlock | Mamba2Block | GatedDeltaBlock | Rwkv7Block:
    """The block that computes a mixer of a layer."""
    if isinstance(spec, ShortConvSpec):
        return ShortConvBlock(layer, model, index, spec, ops)
    if isinstance(spec, Mamba2Spec):
        return Mamba2Block(layer, model, index, spec, ops)
    if isinstance(spec, GatedDeltaSpec):
        return GatedDeltaBlock(layer, model, index, spec, ops)
    if isinstance(spec, Rwkv7Spec):
        return Rwkv7Block(layer, model, index, spec, ops)
    return AttentionBlock(layer, model, index, spec, ops)


def feed_forward_block(
    layer: nn.Module, model: ModelSpec, index: int, ops: Ops
) -> DenseBlock | ExpertsBlock | ShiftedBlock:
    """The block that computes `feed_forward` of a layer."""
    spec: FeedForward = model.layers[index].feed_forward
    if isinstance(spec, ExpertsSpec):
        return ExpertsBlock(layer, model, index, spec, ops)
    if spec.shifted:
        return ShiftedBlock(layer, model, index, spec, ops)
    return DenseBlock(layer, model, index, spec, "mlp", ops)
