"""Mistral (Jiang et al. 2023): a Llama in whose first version every layer has a window. GGUF files
call it a Llama, and converters leave the window out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.spec import ModelSpec

DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8}
"""Where a `config.json` does not say it; a window of null is none."""
HF_NAMES = llama.HF_NAMES
read_gguf = llama.read_gguf


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(ConfigValues(config, DEFAULTS), "llama")


def config_spec(values: ConfigValues, name: str) -> ModelSpec:
    """A Mistral. name: of the spec's architecture. Raises UnsupportedModel, ModelFileError."""
    window = values.count("sliding_window") if values.has("sliding_window") else None
    spec = llama.config_spec(values, name)
    return spec.with_attention(lambda _, one: replace(one, window=window))
