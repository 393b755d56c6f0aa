"""Qwen2 and Qwen2.5 (dense; Qwen Team 2024): a Llama with biases of queries, keys and values. The
last layers may have a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}
"""Where a `config.json` does not say it."""
HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    return gguf_plan(GGUFValues(metadata, "qwen2"), tensors)


def gguf_plan(values: GGUFValues, tensors: Tensors) -> WeightPlan:
    """Of an architecture that is a Qwen2. Raises UnsupportedModel, ModelFileError."""
    spec = llama.gguf_spec(values, tensors)
    return plan_weights(_biased(spec, [None] * len(spec.layers)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(config, "qwen2", DEFAULTS, llama.THETA)


def config_spec(
    config: Mapping[str, object], name: str, defaults: Mapping[str, object], theta: float
) -> ModelSpec:
    """A Qwen2. name: of the spec's architecture; theta: the default. Raises UnsupportedModel,
    ModelFileError."""
    values = ConfigValues(config, defaults)
    spec = llama.config_spec(values, name, theta=theta)
    return _biased(spec, _windows(values, len(spec.layers)))


def _windows(values: ConfigValues, layers: int) -> list[int | None]:
    """Of each layer; `sliding_window` counts only where `use_sliding_window` says so."""
    if not values.flag("use_sliding_window", False) or not values.has("sliding_window"):
        return [None] * layers
    window = values.count("sliding_window")
    if values.has("layer_types"):
        return [window if one else None for one in values.windowed(layers, every=1)]
    first = values.get("max_window_layers")
    if type(first) is not int or first < 0:
        raise values.wrong("max_window_layers", first, "a whole number")
    return [None if i < first else window for i in range(layers)]


def _biased(spec: ModelSpec, windows: list[int | None]) -> ModelSpec:
    def changed(i: int, one: AttentionSpec) -> AttentionSpec:
        return replace(one, qkv_bias=True, window=windows[i])

    return spec.with_attention(changed)
