"""Qwen1.5 MoE and Qwen2 MoE (Qwen Team 2024): a Qwen2 with experts, and a network beside them that
has a gate of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.qwen3_moe import sparse_layers
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import EXPERT_NAMES, LLAMA_NAMES, Origin, Squeezed
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
_MLP = "model.layers.{i}.mlp"
NETWORK_NAMES: Mapping[str, Origin] = {
    **EXPERT_NAMES,
    "blk.{i}.ffn_gate_inp_shexp.weight": Squeezed(f"{_MLP}.shared_expert_gate.weight"),
    "blk.{i}.ffn_gate_shexp.weight": f"{_MLP}.shared_expert.gate_proj.weight",
    "blk.{i}.ffn_up_shexp.weight": f"{_MLP}.shared_expert.up_proj.weight",
    "blk.{i}.ffn_down_shexp.weight": f"{_MLP}.shared_expert.down_proj.weight",
}
"""The experts and the network beside them."""
HF_NAMES = LLAMA_NAMES | NETWORK_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen2moe")
    sizes = values.sizes(tensors, intermediate="expert_feed_forward_length")
    shared = values.count("expert_shared_feed_forward_length")
    layer = _layer(sizes, values.experts(sizes.intermediate), shared, has_bias=True)
    rope = values.rope(sizes.head_dim, THETA)
    return plan_weights(sizes.model([layer] * sizes.layers, [rope]), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("use_sliding_window", False)
    sizes = values.sizes("qwen2moe", intermediate="moe_intermediate_size")
    experts = values.experts(sizes.intermediate)
    experts = replace(experts, renormalize=values.flag("norm_topk_prob", False))
    shared = values.count("shared_expert_intermediate_size")
    layer = _layer(sizes, experts, shared, has_bias=values.flag("qkv_bias", True))
    layers = sparse_layers(values, layer, sizes.layers)
    return sizes.model(layers, [values.rope(sizes.head_dim, THETA)])


def _layer(sizes: Sizes, experts: ExpertsSpec, shared: int, *, has_bias: bool) -> LayerSpec:
    """shared: size of the network beside the experts."""
    experts = replace(experts, shared_intermediate=shared, shared_gate=True)
    return LayerSpec(replace(sizes.attention(), qkv_bias=has_bias), experts)
