"""OLMo 3 (Ai2 2025): an OLMo 2 with windows; see there."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models import llama, olmo2
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.spec import ModelSpec

THETA = 500_000.0
DEFAULTS = {**olmo2.DEFAULTS, "sliding_window": 4096}
"""Where a `config.json` does not say it."""
HF_NAMES = olmo2.HF_NAMES
read_gguf = olmo2.read_gguf


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    spec = olmo2.normed(llama.config_spec(values, "olmo2"))
    dim = spec.attention_layers[0].head_dim
    ropes = values.ropes_by_kind(dim, THETA, THETA, local_key="rope_theta")
    windowed = values.windowed(len(spec.layers), olmo2.GLOBAL_EVERY)
    return olmo2.windowed_spec(spec, values.count("sliding_window"), ropes, windowed)
