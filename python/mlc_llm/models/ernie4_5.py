"""ERNIE 4.5 (dense; Baidu 2025): a Llama whose rotated pairs are neighbours in all its files, with
biases everywhere or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 500_000.0
DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
"""Where a `config.json` does not say it."""
HF_NAMES = replace(llama.HF_NAMES, interleaved_rope=True)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    spec = llama.gguf_spec(GGUFValues(metadata, "ernie4_5"), tensors, theta=THETA)
    return plan_weights(spec, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    bias = ConfigValues(config).flag("use_bias", False)
    named = {**config, "attention_bias": bias, "mlp_bias": bias}
    return llama.config_spec(ConfigValues(named, DEFAULTS), "ernie4_5", theta=THETA, tied_head=True)
