"""Granite 3 (IBM 2024), dense: a Llama with four multipliers, of the embedding, of the scores, of
what is added to the residual stream, and of the logits, which are divided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_gguf

HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "granite")
    values.refuse_unless("rope.scaling.finetuned", True)  # false: no layer rotates
    spec = llama.gguf_spec(values, tensors)
    scale = next(iter(spec.attention_layers.values())).scale
    spec = _multiplied(
        spec,
        values.positive("attention.scale", scale),
        values.positive("embedding_scale", 1.0),
        values.positive("residual_scale", 1.0),
        values.positive("logit_scale"),
    )
    return plan_gguf(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    names = "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"
    multipliers = (values.positive(name, 1.0) for name in names)
    return _multiplied(llama.config_spec(values, "granite"), *multipliers)


def _multiplied(
    spec: ModelSpec, scores: float, embedding: float, residual: float, logits: float
) -> ModelSpec:
    spec = spec.with_attention(lambda _, one: replace(one, scale=scores))
    layers = tuple(replace(layer, residual_scale=residual) for layer in spec.layers)
    return replace(spec, layers=layers, embedding_scale=embedding, logit_scale=1 / logits)
