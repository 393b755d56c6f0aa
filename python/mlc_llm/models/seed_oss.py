"""Seed-OSS (ByteDance Seed 2025): a Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8}
"""Where a `config.json` does not say it."""
NAMES = {"ffn_norm.weight": "post_attention_norm.weight"}
"""How GGUF files name a layer's tensors otherwise."""
HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    spec = llama.gguf_spec(GGUFValues(metadata, "seed_oss"), tensors)
    return plan_weights(spec, tensors, names=NAMES)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    spec = llama.config_spec(values, "seed_oss")
    qkv, output = values.flag("attention_bias", True), values.flag("attention_out_bias", False)
    return spec.with_attention(lambda _, one: replace(one, qkv_bias=qkv, output_bias=output))
