"""Qwen3 MoE (Qwen Team 2025): a Qwen3 with experts in place of feed-forward networks.

The router's softmax is over all experts; the chosen ones' weights are divided by their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.qwen3 import CONFIG_THETA, GGUF_THETA, HEAD_DIM
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import EXPERT_NAMES, LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

HF_NAMES = LLAMA_NAMES | EXPERT_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen3moe")
    sizes = values.sizes(tensors, intermediate="expert_feed_forward_length")
    is_sum_one = values.flag("expert_weights_norm", True)
    experts = replace(values.experts(sizes.intermediate), renormalize=is_sum_one)
    layer = LayerSpec(replace(sizes.attention(), qk_norm="head"), experts)
    rope = values.rope(sizes.head_dim, GGUF_THETA)
    return plan_weights(sizes.model([layer] * sizes.layers, [rope]), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_sliding_window", False)
    sizes = values.sizes("qwen3moe", head_dim=HEAD_DIM, intermediate="moe_intermediate_size")
    is_sum_one = values.flag("norm_topk_prob", False)
    experts = replace(values.experts(sizes.intermediate), renormalize=is_sum_one)
    layer = LayerSpec(replace(sizes.attention(), qk_norm="head"), experts)
    layers = sparse_layers(values, layer, sizes.layers)
    return sizes.model(layers, [values.rope(sizes.head_dim, CONFIG_THETA)])


def sparse_layers(values: ConfigValues, layer: LayerSpec, count: int) -> list[LayerSpec]:
    """So many layers, some of which have a dense network in place of experts. Raises
    ModelFileError."""
    step, dense = values.count("decoder_sparse_step", 1), values.counts("mlp_only_layers", 10_000)
    layers = [layer] * count
    for i in range(count):
        if i in dense or (i + 1) % step:
            layers[i] = replace(layer, feed_forward=DenseSpec(values.count("intermediate_size")))
    return layers
