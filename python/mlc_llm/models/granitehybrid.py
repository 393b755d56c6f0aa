"""Granite 4 (IBM 2025): a Granite whose layers are state spaces (Mamba 2), but for a few with
attention. Each has a dense network, or experts and a network beside them. The smallest models have
attention in all layers, with a rotary embedding, which the others lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models import granitemoe
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.llama import THETA
from mlc_llm.models.network_spec import DenseSpec, FeedForward
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.state_spaces import NO_LIMITS, config_mixer, gguf_mixer, mixer_names
from mlc_llm.models.tensor_names import fused
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

RECURRENT, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""Names of layers in a `config.json`."""
_NETWORK = "model.layers.{i}.shared_mlp"
HF_NAMES = (
    granitemoe.HF_NAMES
    | fused(f"{_NETWORK}.input_linear.weight", "blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight")
    | {"blk.{i}.ffn_down.weight": f"{_NETWORK}.output_linear.weight"}
    | mixer_names("model.layers.{i}.mamba")
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "granitehybrid")
    values.refuse_unless("rope.scaling.finetuned", False)  # true: attention rotates
    per_layer = values.numbers("attention.head_count_kv", values.layer_count(tensors))
    kv_heads = max(per_layer)
    values.check(
        "attention.head_count_kv",
        kv_heads > 0 and set(per_layer) <= {0, kv_heads},
        "one number for all layers of attention, and 0 for others",
    )
    sizes = values.sizes(tensors, kv_heads=kv_heads)
    scores = values.positive("attention.scale", sizes.attention().scale)
    wide = values.whole("expert_shared_feed_forward_length")
    if values.get("expert_count"):
        experts = values.experts(sizes.intermediate)
        network: FeedForward = replace(experts, router="top_then_softmax", shared_intermediate=wide)
    else:
        network = DenseSpec(wide or sizes.intermediate)
    mixer = gguf_mixer(values)
    spec = _spec(sizes, mixer, network, scores, [count > 0 for count in per_layer])
    spec = _multiplied(spec, values, "embedding_scale", "residual_scale", "logit_scale")
    return plan_weights(spec, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    for key, allowed in _FIXED.items():
        values.refuse_unless(key, allowed)
    values.refuse_unless("time_step_limit", *NO_LIMITS)
    names = values.texts("layer_types", values.count("num_hidden_layers"), RECURRENT + ATTENTION)
    sizes = values.sizes("granitehybrid")
    mixer = config_mixer(values, values.count("mamba_expand", 2) * sizes.hidden)
    wide = values.count("shared_intermediate_size", 1024)
    if values.get("num_local_experts", 8):
        experts = values.experts(sizes.intermediate)
        network: FeedForward = replace(experts, router="top_then_softmax", shared_intermediate=wide)
    else:
        network = DenseSpec(wide)
    scores = values.positive("attention_multiplier", 1.0)
    spec = _spec(sizes, mixer, network, scores, [name in ATTENTION for name in names])
    if values.choice("position_embedding_type", _ROTATES, "nope"):
        spec = replace(spec, ropes=(values.rope(sizes.head_dim, THETA),))
        spec = spec.with_attention(lambda _, one: replace(one, rope=0))
    keys = "embedding_multiplier", "residual_multiplier", "logits_scaling"
    return _multiplied(spec, values, *keys)


_FIXED = {
    "hidden_act": "silu", "attention_bias": False, "mamba_proj_bias": False,
    "mamba_conv_bias": True,
}  # fmt: skip
"""Settings of which one value is computed."""
_ROTATES = {"nope": False, "rope": True}


def _spec(
    sizes: Sizes, mixer: Mamba2Spec, network: FeedForward, scores: float, attends: Sequence[bool]
) -> ModelSpec:
    """scores: the factor of attention's scores."""
    attention = LayerSpec(replace(sizes.attention(scores), rope=None), network)
    recurrent = LayerSpec(mixer, network)
    return sizes.model([attention if one else recurrent for one in attends], [])


def _multiplied(
    spec: ModelSpec, values: Values, embedding: str, residual: str, logits: str
) -> ModelSpec:
    """The last three: names of the multipliers."""
    scale = values.positive(residual, 1.0)
    layers = tuple(replace(layer, residual_scale=scale) for layer in spec.layers)
    return replace(
        spec,
        layers=layers,
        embedding_scale=values.positive(embedding, 1.0),
        logit_scale=1 / values.positive(logits, 1.0),
    )
