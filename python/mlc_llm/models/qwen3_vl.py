"""The language model of Qwen3-VL (Qwen Team 2025): a Qwen3 whose rotation takes three positions of
a token, which are one number where it is text."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models import qwen3
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.qwen2_vl import of_texts
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import Tensors, WeightPlan

NAME, THETA = "qwen3vl", 500_000.0
"""THETA: where a `config.json` does not say it."""
TIED = False
"""See `text_part.py`."""
HF_NAMES = qwen3.HF_NAMES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    return qwen3.gguf_plan(GGUFValues(metadata, NAME), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Of the language model. Raises UnsupportedModel or ModelFileError naming the field at
    fault."""
    return qwen3.config_spec(of_texts(config), NAME, THETA)
