"""OLMo 2 (Ai2 2025) and OLMo 3 (2025): norms behind each half of a layer only; queries and keys are
normalised over all heads of a token together.

In OLMo 3 three of four layers see a window only, and only the others have a scaled rotary embedding
(YaRN). GGUF files call both olmo2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models import llama
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GLOBAL_EVERY = 4
"""Layers 3, 7, ... of OLMo 3 see everything."""
WINDOW = "attention.sliding_window"
DEFAULTS = {"rms_norm_eps": 1e-5}
"""Where a `config.json` does not say it."""
HF_NAMES = LLAMA_NAMES | layers(
    {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "olmo2")
    spec = normed(llama.gguf_spec(values, tensors))
    if values.get(WINDOW):
        (rope,) = spec.ropes
        local = values.rope(rope.dim, rope.theta, suffix="_swa")
        windowed = values.windowed(len(spec.layers), GLOBAL_EVERY)
        spec = windowed_spec(spec, values.count(WINDOW), (rope, local), windowed)
    return plan_weights(spec, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Of OLMo 2. Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return normed(llama.config_spec(ConfigValues(config, DEFAULTS), "olmo2"))


def normed(spec: ModelSpec) -> ModelSpec:
    """A Llama with OLMo's norms."""
    layers = tuple(replace(layer, pre_norms=False, post_norms=True) for layer in spec.layers)
    spec = replace(spec, layers=layers)
    return spec.with_attention(lambda _, one: replace(one, qk_norm="all"))


def windowed_spec(
    spec: ModelSpec, window: int, ropes: tuple[RopeSpec, RopeSpec], windowed: Sequence[bool]
) -> ModelSpec:
    """The spec where layers, as `windowed` says, have the window and the second rotary table."""

    def changed(i: int, one: AttentionSpec) -> AttentionSpec:
        return replace(one, rope=1, window=window) if windowed[i] else one

    return replace(spec, ropes=ropes).with_attention(changed)
