"""Mistral 3 and Ministral 3 (Mistral AI 2025), text: a Llama with YaRN. The second one scales its
queries by position, counted in contexts of the first training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama, mistral
from mlc_llm.models.attention_spec import QueryScaling
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

MINISTRAL_ROPE = {
    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16_384, "beta_fast": 32.0,
    "beta_slow": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
MINISTRAL_DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8, "rope_parameters": MINISTRAL_ROPE}
"""Where a `config.json` does not say it."""
HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "mistral3")
    spec = llama.gguf_spec(values, tensors)
    if values.get("attention.temperature_scale"):
        beta = values.positive("attention.temperature_scale")
        context = values.count("rope.scaling.original_context_length", spec.context_window)
        spec = _scaled(spec, QueryScaling(beta, context))
    return plan_weights(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    if ConfigValues(config).get("model_type") != "ministral3":
        return mistral.config_spec(ConfigValues(config, mistral.DEFAULTS), "mistral3")
    values = ConfigValues(config, MINISTRAL_DEFAULTS)
    spec = mistral.config_spec(values, "mistral3")
    rope = values.rope_fields() or ConfigValues({})
    beta = rope.positive("llama_4_scaling_beta")
    context = rope.count("original_max_position_embeddings", spec.context_window)
    return _scaled(spec, QueryScaling(beta, context))


def _scaled(spec: ModelSpec, scaling: QueryScaling) -> ModelSpec:
    return spec.with_attention(lambda _, one: replace(one, query_scaling=scaling))
