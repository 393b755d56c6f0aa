"""SmolLM3 (Hugging Face 2025): a Llama, every fourth layer of which has no rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

UNROTATED_EVERY = 4
"""Layers 3, 7, ... have no rotary embedding; GGUF files do not say it."""
THETA = 2_000_000.0
DEFAULTS = {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}
"""Where a `config.json` does not say it."""
HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    spec = llama.gguf_spec(GGUFValues(metadata, "smollm3"), tensors)
    rotated = [(i + 1) % UNROTATED_EVERY > 0 for i in range(len(spec.layers))]
    return plan_weights(_partly_rotated(spec, rotated), tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("use_sliding_window", False)
    spec = llama.config_spec(values, "smollm3", theta=THETA, tied_head=True)
    return _partly_rotated(spec, _rotated(values, len(spec.layers)))


def _rotated(values: ConfigValues, layers: int) -> list[bool]:
    """Whether each layer rotates: `no_rope_layers` has a 1 for those that do."""
    if values.has("no_rope_layers"):
        return values.flags("no_rope_layers", layers)
    every = values.count("no_rope_layer_interval", UNROTATED_EVERY)
    return [(i + 1) % every > 0 for i in range(layers)]


def _partly_rotated(spec: ModelSpec, rotated: list[bool]) -> ModelSpec:
    def changed(i: int, one: AttentionSpec) -> AttentionSpec:
        return one if rotated[i] else replace(one, rope=None)

    return spec.with_attention(changed)
