"""What a spec may ask for that not every backend computes: a name for each such feature.

A backend lists those that it has. A model that needs another one is refused before anything is
compiled, with the layer and the feature in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, TypeAlias, get_args

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec

Feature: TypeAlias = Literal[
    "score caps",
    "learned attention sinks",
    "biases",
    "attention without a rotary embedding",
    "rotary embeddings of parts of a head",
    "norms over all heads",
    "queries scaled by position",
    "norms of values",
    "values that are keys",
    "keys and values of another layer",
    "learned factors of layers",
    "inputs of layers by token",
    "experts",
    "biases of experts",
    "experts chosen by sigmoids",
    "gates of shared experts",
    "networks without a gate",
    "activations other than SiLU and tanh GELU",
    "parallel layers",
    "short convolutions",
    "state spaces",
    "gated delta rules",
    "time mixing of RWKV-7",
    "networks that read the token before",
    "norms of embeddings",
    "gates of attention",
    "mixers side by side",
    "layers without a network",
    "no attention at all",
    "residual multipliers",
    "layer norms",
    "norms behind sums",
    "encoders",
    "windows on both sides",
    "learned positions",
    "towers of images",
    "images",
    "logit multipliers",
    "logit caps",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)


def _has_bias(layer: LayerSpec) -> bool:
    mlp = layer.feed_forward
    has_mlp_bias = isinstance(mlp, DenseSpec) and mlp.bias
    return has_mlp_bias or _attention(layer, lambda one: one.qkv_bias or one.output_bias)


def _attention(layer: LayerSpec, is_asked: Callable[[AttentionSpec], bool]) -> bool:
    """Whether a layer has attention, of which something holds."""
    return isinstance(layer.mixer, AttentionSpec) and is_asked(layer.mixer)


def _is_ungated(layer: LayerSpec) -> bool:
    return isinstance(layer.feed_forward, DenseSpec) and not layer.feed_forward.gated


def _has_expert_biases(layer: LayerSpec) -> bool:
    return isinstance(layer.feed_forward, ExpertsSpec) and layer.feed_forward.bias


def _chooses_by_sigmoids(layer: LayerSpec) -> bool:
    network = layer.feed_forward
    return isinstance(network, ExpertsSpec) and network.router == "sigmoid_then_top"


def _has_shared_gate(layer: LayerSpec) -> bool:
    return isinstance(layer.feed_forward, ExpertsSpec) and layer.feed_forward.shared_gate


def _turns_parts(spec: ModelSpec) -> bool:
    """Whether some layer rotates less than its whole heads."""
    layers = spec.attention_layers.values()
    return any(one.rope is not None and spec.ropes[one.rope].dim < one.head_dim for one in layers)


_OF_LAYERS: dict[Feature, Callable[[LayerSpec], bool]] = {
    "score caps": lambda layer: _attention(layer, lambda one: one.score_cap is not None),
    "learned attention sinks": lambda layer: _attention(layer, lambda one: one.learned_sinks),
    "biases": _has_bias,
    "attention without a rotary embedding": lambda layer: _attention(
        layer, lambda one: one.rope is None
    ),
    "norms over all heads": lambda layer: _attention(layer, lambda one: one.qk_norm == "all"),
    "queries scaled by position": lambda layer: _attention(
        layer, lambda one: one.query_scaling is not None
    ),
    "windows on both sides": lambda layer: _attention(layer, lambda one: one.reach is not None),
    "norms of values": lambda layer: _attention(layer, lambda one: one.value_norm),
    "values that are keys": lambda layer: _attention(layer, lambda one: one.values_are_keys),
    "keys and values of another layer": lambda layer: _attention(
        layer, lambda one: one.shares is not None
    ),
    "learned factors of layers": lambda layer: layer.output_scale,
    "inputs of layers by token": lambda layer: layer.token_input > 0,
    "biases of experts": _has_expert_biases,
    "experts chosen by sigmoids": _chooses_by_sigmoids,
    "gates of shared experts": _has_shared_gate,
    "networks without a gate": _is_ungated,
    "activations other than SiLU and tanh GELU": lambda layer: (
        layer.feed_forward.activation not in ("silu", "gelu_tanh")
    ),
    "parallel layers": lambda layer: layer.parallel,
    "short convolutions": lambda layer: isinstance(layer.mixers[-1], ShortConvSpec),
    "state spaces": lambda layer: isinstance(layer.mixers[-1], Mamba2Spec),
    "gated delta rules": lambda layer: isinstance(layer.mixers[-1], GatedDeltaSpec),
    "time mixing of RWKV-7": lambda layer: isinstance(layer.mixers[-1], Rwkv7Spec),
    "networks that read the token before": lambda layer: bool(layer.feed_forward.state_shapes),
    "gates of attention": lambda layer: _attention(layer, lambda one: one.gated),
    "mixers side by side": lambda layer: layer.beside is not None,
    "layers without a network": lambda layer: not layer.has_network,
    "experts": lambda layer: isinstance(layer.feed_forward, ExpertsSpec),
    "residual multipliers": lambda layer: layer.residual_scale != 1.0,
    "norms behind sums": lambda layer: layer.sum_norms,
}
_OF_MODELS: dict[Feature, Callable[[ModelSpec], bool]] = {
    "rotary embeddings of parts of a head": _turns_parts,
    "norms of embeddings": lambda spec: spec.embedding_norm,
    "no attention at all": lambda spec: not spec.attention_layers,
    "layer norms": lambda spec: spec.norm == "layer",
    "encoders": lambda spec: spec.encoder is not None,
    "learned positions": lambda spec: spec.learned_positions > 0,
    "towers of images": lambda spec: spec.tower is not None,
    "images": lambda spec: spec.sight is not None,
    "logit multipliers": lambda spec: spec.logit_scale != 1.0,
    "logit caps": lambda spec: spec.logit_cap is not None,
}


def refuse_missing(
    spec: ModelSpec,
    kernels: str,
    has: Collection[Feature] = (),
    otherwise: str = "use --kernels reference",
) -> None:
    """Raises UnsupportedModel for the first feature of the model that is not in `has`.

    kernels: the backend's name. otherwise: what to do then.
    """
    for i, layer in enumerate(spec.layers):
        for feature, is_asked in _OF_LAYERS.items():
            if feature not in has and is_asked(layer):
                raise _missing(f"layer {i} needs {feature}", kernels, otherwise)
    for feature, is_in_model in _OF_MODELS.items():
        if feature not in has and is_in_model(spec):
            raise _missing(f"the model needs {feature}", kernels, otherwise)


def _missing(need: str, kernels: str, otherwise: str) -> UnsupportedModel:
    words = f"{need}, which the {kernels} kernels cannot compute; {otherwise}"
    return UnsupportedModel(words)
