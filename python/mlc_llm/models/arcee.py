"""Arcee's foundation models (Arcee 2025): a Llama whose network has no gate and squares what ReLU
gives."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models import llama
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

DEFAULTS = {"hidden_act": "relu2", "rms_norm_eps": 1e-5}
"""Where a `config.json` does not say it."""
HF_NAMES = llama.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "arcee")
    spec = llama.gguf_spec(values, tensors)
    network = _network(values.count("feed_forward_length"), "blk.0.ffn_up.bias" in tensors)
    return plan_weights(spec.with_feed_forward(network), tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_act", "relu2")
    spec = llama.config_spec(ConfigValues({**config, "hidden_act": "silu"}, DEFAULTS), "arcee")
    network = _network(values.count("intermediate_size"), values.flag("mlp_bias", False))
    return spec.with_feed_forward(network)


def _network(wide: int, has_bias: bool) -> DenseSpec:
    return DenseSpec(wide, "squared_relu", bias=has_bias, gated=False)
