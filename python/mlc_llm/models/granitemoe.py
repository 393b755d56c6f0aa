"""Granite MoE (IBM 2024): a Granite with experts, and in some a network beside them.

The router's softmax is over the chosen experts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import granite
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import fused
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

_EXPERTS, _SHARED = "model.layers.{i}.block_sparse_moe", "model.layers.{i}.shared_mlp"
HF_NAMES = (
    granite.HF_NAMES
    | fused(
        f"{_EXPERTS}.input_linear.weight",
        "blk.{i}.ffn_gate_exps.weight",
        "blk.{i}.ffn_up_exps.weight",
    )
    | fused(
        f"{_SHARED}.input_linear.weight",
        "blk.{i}.ffn_gate_shexp.weight",
        "blk.{i}.ffn_up_shexp.weight",
    )
    | {
        "blk.{i}.ffn_gate_inp.weight": f"{_EXPERTS}.router.layer.weight",
        "blk.{i}.ffn_down_exps.weight": f"{_EXPERTS}.output_linear.weight",
        "blk.{i}.ffn_down_shexp.weight": f"{_SHARED}.output_linear.weight",
    }
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "granitemoe")
    experts = values.experts(values.count("feed_forward_length"))
    experts = _shared(values, experts, "expert_shared_feed_forward_length")
    spec = granite.gguf_spec(values, tensors).with_feed_forward(experts)
    return plan_weights(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_act", "silu")
    experts = values.experts(values.count("intermediate_size"))
    experts = _shared(values, experts, "shared_intermediate_size")
    return granite.config_spec(values, "granitemoe").with_feed_forward(experts)


def _shared(values: Values, experts: ExpertsSpec, key: str) -> ExpertsSpec:
    """key: of the size of the network beside the experts; absent or 0: there is none."""
    wide = values.count(key) if values.get(key) else 0
    return replace(experts, router="top_then_softmax", shared_intermediate=wide)
