"""LFM2 with experts (Liquid AI 2025): an LFM2 whose layers, all but the first ones, have a mixture
of experts. Weights are sigmoids; a learned number of each expert counts in the choice alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import lfm2
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import Either, Origin, fused
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

DENSE = 2
"""Layers without experts, where a `config.json` does not say it."""
SIGMOID = 2
"""The number that GGUF has for a router of sigmoids."""
_NETWORK = "model.layers.{i}.feed_forward"
_EXPERTS = f"{_NETWORK}.experts"
_STACKS = fused(
    f"{_EXPERTS}.gate_up_proj", "blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight"
)


def _one_by_one(name: str, stack: Origin) -> Origin:
    """A matrix for each expert, or the stack that Transformers 5 makes of them."""
    return Either((f"{_EXPERTS}.{{e}}.{name}.weight", stack))


HF_NAMES = lfm2.HF_NAMES | {
    "blk.{i}.ffn_gate_inp.weight": f"{_NETWORK}.gate.weight",
    "blk.{i}.exp_probs_b.bias": f"{_NETWORK}.expert_bias",
    "blk.{i}.ffn_gate_exps.weight": _one_by_one("w1", _STACKS["blk.{i}.ffn_gate_exps.weight"]),
    "blk.{i}.ffn_up_exps.weight": _one_by_one("w3", _STACKS["blk.{i}.ffn_up_exps.weight"]),
    "blk.{i}.ffn_down_exps.weight": _one_by_one("w2", f"{_EXPERTS}.down_proj"),
}


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "lfm2moe")
    values.refuse_unless("expert_gating_func", SIGMOID)
    found = values.experts(values.count("expert_feed_forward_length"))
    dense = values.whole("leading_dense_block_count")
    has_bias = any(name.endswith("exp_probs_b.bias") for name in tensors)
    scale = values.cap("expert_weights_scale") or 1.0
    experts = _experts(found, has_bias, scale, values.flag("expert_weights_norm", True))
    spec = _with_experts(lfm2.gguf_spec(values, tensors), experts, dense)
    return plan_weights(spec, tensors, last_norm=lfm2.LAST_NORM)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues({**config, "block_auto_adjust_ff_dim": False})
    found = values.experts(values.count("moe_intermediate_size"))
    has_bias = values.flag("use_expert_bias", True)
    scale = values.positive("routed_scaling_factor", 1.0)
    experts = _experts(found, has_bias, scale, values.flag("norm_topk_prob", True))
    dense = values.whole("num_dense_layers") if values.has("num_dense_layers") else DENSE
    return _with_experts(lfm2.config_spec(values, "lfm2moe"), experts, dense)


def _experts(found: ExpertsSpec, has_bias: bool, scale: float, sums_to_one: bool) -> ExpertsSpec:
    return replace(
        found,
        router="sigmoid_then_top",
        choice_bias=has_bias,
        weight_scale=scale,
        renormalize=sums_to_one,
    )


def _with_experts(spec: ModelSpec, experts: ExpertsSpec, dense: int) -> ModelSpec:
    """dense: how many layers, from the first one on, have none."""
    layers = tuple(
        layer if i < dense else replace(layer, feed_forward=experts)
        for i, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=layers)
