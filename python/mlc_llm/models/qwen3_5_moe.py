"""Qwen3.5 with experts (Qwen Team 2026): its layers, with experts and a network beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.qwen2_moe import NETWORK_NAMES
from mlc_llm.models.qwen3_5 import HF_NAMES as DELTA_NAMES
from mlc_llm.models.qwen3_5 import (
    NORMS,
    SIZES,
    THETA,
    attends,
    config_spec,
    delta_spec,
    gguf_mixer,
    without_drafts,
)
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

HF_NAMES = DELTA_NAMES | NETWORK_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen35moe")
    sizes = values.sizes(tensors, intermediate="expert_feed_forward_length")
    sizes, tensors = without_drafts(values, sizes, tensors)
    shared = values.count("expert_shared_feed_forward_length")
    network = _network(values.experts(sizes.intermediate), shared)
    # The converter puts the heads of values in turn.
    mixer = replace(gguf_mixer(values), in_turn=True)
    rope = values.rope(sizes.head_dim, THETA)
    spec = delta_spec(sizes, rope, mixer, network, attends(values, sizes.layers))
    return plan_weights(spec, tensors, names=NORMS)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, SIZES)
    values.refuse_unless("norm_topk_prob", True)
    values.refuse_unless("mlp_only_layers", [])
    sizes = values.sizes("qwen35moe", intermediate="moe_intermediate_size")
    shared = values.count("shared_expert_intermediate_size")
    return config_spec(values, sizes, _network(values.experts(sizes.intermediate), shared))


def _network(experts: ExpertsSpec, shared: int) -> ExpertsSpec:
    """shared: size of the network beside the experts."""
    return replace(experts, renormalize=True, shared_intermediate=shared, shared_gate=True)
