"""Granite 3 (IBM 2024), dense: a Llama with four multipliers, of the embedding, of the scores, of
what is added to the residual stream, and of the logits, which are divided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    spec = gguf_spec(GGUFValues(metadata, "granite"), tensors)
    return plan_weights(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(ConfigValues(config), "granite")


def gguf_spec(values: GGUFValues, tensors: Tensors) -> ModelSpec:
    """A Granite of that name. Raises UnsupportedModel, ModelFileError."""
    values.refuse_unless("rope.scaling.finetuned", True)  # false: no layer rotates
    spec = llama.gguf_spec(values, tensors)
    scale = next(iter(spec.attention_layers.values())).scale
    return _multiplied(
        spec,
        values.positive("attention.scale", scale),
        values.positive("embedding_scale", 1.0),
        values.positive("residual_scale", 1.0),
        values.positive("logit_scale"),
    )


def config_spec(values: ConfigValues, name: str) -> ModelSpec:
    """A Granite. name: of the spec's architecture. Raises UnsupportedModel, ModelFileError."""
    names = "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"
    multipliers = (values.positive(one, 1.0) for one in names)
    return _multiplied(llama.config_spec(values, name), *multipliers)


def _multiplied(
    spec: ModelSpec, scores: float, embedding: float, residual: float, logits: float
) -> ModelSpec:
    spec = spec.with_attention(lambda _, one: replace(one, scale=scores))
    layers = tuple(replace(layer, residual_scale=residual) for layer in spec.layers)
    return replace(spec, layers=layers, embedding_scale=embedding, logit_scale=1 / logits)
