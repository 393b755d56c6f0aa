"""Cohere 2 (Command R7B, Cohere 2024): both halves of a layer read one layer norm without biases.

Three of four layers see through a window, and only these have a rotary embedding, whose pairs are
neighbours in files. Logits are multiplied by a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

GLOBAL_EVERY = 4
"""Layers 3, 7, ... see everything."""
THETA, LOGIT_SCALE = 10_000.0, 0.0625
DEFAULTS = {"layer_norm_eps": 1e-5, "sliding_window": 4096}
"""Where a `config.json` does not say it."""
WINDOW = "attention.sliding_window"
HF_NAMES = replace(LLAMA_NAMES, interleaved_rope=True)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "cohere2")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS)
    rope = values.rope(sizes.head_dim, THETA)
    values.refuse_local_rope(rope)
    spec = _spec(
        sizes,
        rope,
        DenseSpec(sizes.intermediate),
        values.count(WINDOW),
        values.windowed(sizes.layers, GLOBAL_EVERY),
    )
    scaled = replace(spec, logit_scale=values.positive("logit_scale"))
    return plan_weights(scaled, tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    for name, usual in (("attention_bias", False), ("use_qk_norm", False), ("rotary_pct", 1.0)):
        values.refuse_unless(name, usual)
    sizes = values.sizes("cohere2", tied_head=True, eps="layer_norm_eps")
    every = values.count("sliding_window_pattern", GLOBAL_EVERY)
    spec = _spec(
        sizes,
        values.rope(sizes.head_dim, THETA),
        DenseSpec(sizes.intermediate, values.activation()),
        values.count("sliding_window"),
        values.windowed(sizes.layers, every),
    )
    return replace(spec, logit_scale=values.positive("logit_scale", LOGIT_SCALE))


def _spec(
    sizes: Sizes, rope: RopeSpec, mlp: DenseSpec, window: int, windowed: Sequence[bool]
) -> ModelSpec:
    """windowed: whether each layer has the window, and the rotary embedding."""
    whole = replace(sizes.attention(), rope=None)
    local = replace(whole, rope=0, window=window)
    layers = [
        LayerSpec(local if is_local else whole, mlp, parallel=True, one_norm=True)
        for is_local in windowed
    ]
    return replace(sizes.model(layers, [rope]), norm="layer", norm_bias=False)
