"""The language models of Qwen2-VL and Qwen2.5-VL (Qwen Team 2024, 2025): a Qwen2 whose rotation
takes three positions of a token, in time, height and width. Those of a text's token are one number,
so texts are rotated as in Qwen2."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models import qwen2
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan

NAME, THETA = "qwen2vl", 1_000_000.0
DEFAULTS = {**qwen2.DEFAULTS, "max_window_layers": 80, "rms_norm_eps": 1e-5}
"""Where a `config.json` does not say it."""
TIED, FLAT = False, True
"""See `text_part.py`."""
HF_NAMES = qwen2.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    return qwen2.gguf_plan(GGUFValues(metadata, NAME), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Of the language model. Raises UnsupportedModel or ModelFileError naming the field at
    fault."""
    return qwen2.config_spec(of_texts(config), NAME, DEFAULTS, THETA)


def of_texts(config: Mapping[str, object]) -> Mapping[str, object]:
    """With a rotation by one position, if a token has three (`mrope`)."""
    stated = config.get("rope_scaling")
    if isinstance(stated, Mapping) and "mrope" in (stated.get("type"), stated.get("rope_type")):
        return {**config, "rope_scaling": {**stated, "type": "default", "rope_type": "default"}}
    return config
