"""Qwen3 (dense; Qwen Team 2025): a Llama whose queries and keys are normalised head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GGUF_THETA, CONFIG_THETA = 1_000_000.0, 10_000.0
"""What a file means that does not say it."""
HEAD_DIM = 128
"""Where a `config.json` does not say it."""
HF_NAMES = LLAMA_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    return gguf_plan(GGUFValues(metadata, "qwen3"), tensors)


def gguf_plan(values: GGUFValues, tensors: Tensors) -> WeightPlan:
    """Of an architecture that is a Qwen3. Raises UnsupportedModel, ModelFileError."""
    sizes = values.sizes(tensors)
    return plan_weights(_spec(sizes, values.rope(sizes.head_dim, GGUF_THETA)), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(config, "qwen3", CONFIG_THETA)


def config_spec(config: Mapping[str, object], name: str, theta: float) -> ModelSpec:
    """A Qwen3. name: of the spec's architecture; theta: the default. Raises UnsupportedModel,
    ModelFileError."""
    values = ConfigValues(config)
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("attention_bias", False)
    values.refuse_unless("use_sliding_window", False)
    sizes = values.sizes(name, head_dim=HEAD_DIM)
    return _spec(sizes, values.rope(sizes.head_dim, theta))


def _spec(sizes: Sizes, rope: RopeSpec) -> ModelSpec:
    layer = LayerSpec(replace(sizes.attention(), qk_norm="head"), DenseSpec(sizes.intermediate))
    return sizes.model([layer] * sizes.layers, [rope])
