"""Qwen3-Next (Qwen Team 2025): the layers of Qwen3.5, with experts and a network beside them."""

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
from mlc_llm.models.qwen3_moe import sparse_layers
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import FolderNames, HeadParts
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

HF_NAMES = DELTA_NAMES | NETWORK_NAMES
_MIXER = "model.layers.{i}.linear_attn"


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen3next")
    sizes = values.sizes(tensors, intermediate="expert_feed_forward_length")
    sizes, tensors = without_drafts(values, sizes, tensors)
    shared = values.count("expert_shared_feed_forward_length")
    network = _network(values.experts(sizes.intermediate), shared, renormalize=True)
    rope, mixer = values.rope(sizes.head_dim, THETA), gguf_mixer(values)
    spec = delta_spec(sizes, rope, mixer, network, attends(values, sizes.layers))
    return plan_weights(spec, tensors, names=NORMS)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, SIZES)
    sizes = values.sizes("qwen3next", intermediate="moe_intermediate_size")
    shared = values.count("shared_expert_intermediate_size")
    is_sum_one = values.flag("norm_topk_prob", True)
    network = _network(values.experts(sizes.intermediate), shared, renormalize=is_sum_one)
    spec = config_spec(values, sizes, network)
    dense = sparse_layers(values, spec.layers[0], sizes.layers)
    layers = zip(spec.layers, dense, strict=True)
    return replace(
        spec, layers=tuple(replace(one, feed_forward=two.feed_forward) for one, two in layers)
    )


def config_names(config: Mapping[str, object]) -> FolderNames:
    """The table with the parts of fused matrices, whose sizes the config says: each head of keys
    has its queries, keys, values and gates together. Raises ModelFileError."""
    values = ConfigValues(config, SIZES)
    heads, key = values.count("linear_num_key_heads"), values.count("linear_key_head_dim")
    share = values.count("linear_num_value_heads") // heads
    wide = share * values.count("linear_value_head_dim")
    qkvz, ba = (key, key, wide, wide), (share, share)
    fused, numbers = f"{_MIXER}.in_proj_qkvz.weight", f"{_MIXER}.in_proj_ba.weight"
    return HF_NAMES | {
        "blk.{i}.attn_qkv.weight": HeadParts(fused, heads, qkvz, (0, 1, 2)),
        "blk.{i}.attn_gate.weight": HeadParts(fused, heads, qkvz, (3,)),
        "blk.{i}.ssm_beta.weight": HeadParts(numbers, heads, ba, (0,)),
        "blk.{i}.ssm_alpha.weight": HeadParts(numbers, heads, ba, (1,)),
    }


def _network(experts: ExpertsSpec, shared: int, *, renormalize: bool) -> ExpertsSpec:
    """shared: size of the network beside the experts."""
    return replace(experts, renormalize=renormalize, shared_intermediate=shared, shared_gate=True)
