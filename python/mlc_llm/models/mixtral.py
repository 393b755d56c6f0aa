"""Mixtral (Jiang et al. 2024): a Mistral with experts in place of feed-forward networks.

The weights of the chosen experts are divided by their sum. GGUF files call it a Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama, mistral
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.spec import ModelSpec

DEFAULTS = {"num_key_value_heads": 8, "rope_theta": 1_000_000.0}
"""Where a `config.json` does not say it."""
_EXPERTS = "model.layers.{i}.block_sparse_moe"
HF_NAMES = llama.HF_NAMES | {
    "blk.{i}.ffn_gate_inp.weight": f"{_EXPERTS}.gate.weight",
    "blk.{i}.ffn_gate_exps.weight": f"{_EXPERTS}.experts.{{e}}.w1.weight",
    "blk.{i}.ffn_down_exps.weight": f"{_EXPERTS}.experts.{{e}}.w2.weight",
    "blk.{i}.ffn_up_exps.weight": f"{_EXPERTS}.experts.{{e}}.w3.weight",
}
read_gguf = llama.read_gguf


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    experts = values.experts(values.count("intermediate_size"))
    experts = replace(experts, activation=values.activation(), renormalize=True)
    return mistral.config_spec(values, "llama").with_feed_forward(experts)
