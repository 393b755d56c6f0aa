"""OLMoE (Muennighoff et al. 2024): many small experts, and norms over all heads of a token.

The router's softmax is over all experts, and the chosen ones' weights are not divided by their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import EXPERT_NAMES, LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
HF_NAMES = LLAMA_NAMES | EXPERT_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "olmoe")
    sizes = values.sizes(tensors)
    experts = values.experts(sizes.intermediate)
    return plan_weights(_spec(sizes, experts, values.rope(sizes.head_dim, THETA)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("clip_qkv")
    sizes = values.sizes("olmoe")
    experts = values.experts(sizes.intermediate)
    experts = replace(experts, renormalize=values.flag("norm_topk_prob", False))
    return _spec(sizes, experts, values.rope(sizes.head_dim, THETA))


def _spec(sizes: Sizes, experts: ExpertsSpec, rope: RopeSpec) -> ModelSpec:
    layer = LayerSpec(replace(sizes.attention(), qk_norm="all"), experts)
    return sizes.model([layer] * sizes.layers, [rope])
