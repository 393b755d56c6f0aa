"""EXAONE 4 (LG AI Research 2025): norms behind each half of a layer only, and one of each query and
key head.

Large models have windows: three of four layers see through one, and only these have a rotary
embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models import llama, olmo2
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GLOBAL_EVERY = 4
"""Layers 3, 7, ... see everything."""
DEFAULTS = {"rms_norm_eps": 1e-5, "sliding_window": 4096}
"""Where a `config.json` does not say it."""
HF_NAMES = olmo2.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "exaone4")
    spec = _normed(llama.gguf_spec(values, tensors))
    if values.get(llama.WINDOW):
        values.refuse_local_rope(spec.ropes[0])
        windowed = values.windowed(len(spec.layers), GLOBAL_EVERY)
        spec = _windowed(spec, values.count(llama.WINDOW), windowed)
    return plan_weights(spec, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    spec = _normed(llama.config_spec(values, "exaone4"))
    if values.has("sliding_window"):
        if not values.has("layer_types"):
            values.refuse_unless("sliding_window_pattern", GLOBAL_EVERY, "LLLG")
        windowed = values.windowed(len(spec.layers), GLOBAL_EVERY)
        spec = _windowed(spec, values.count("sliding_window"), windowed)
    return spec


def _normed(spec: ModelSpec) -> ModelSpec:
    return olmo2.normed(spec).with_attention(lambda _, one: replace(one, qk_norm="head"))


def _windowed(spec: ModelSpec, window: int, windowed: Sequence[bool]) -> ModelSpec:
    def changed(i: int, one: AttentionSpec) -> AttentionSpec:
        return replace(one, window=window) if windowed[i] else replace(one, rope=None)

    return spec.with_attention(changed)
