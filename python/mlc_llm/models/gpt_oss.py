"""gpt-oss (OpenAI 2025): experts with biases and a clamped SwiGLU, and learned attention sinks.

Every other layer, the first one included, sees a window only. The router's softmax is over the
chosen experts. Converters call the norm before the experts as others call a norm after attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import (
    LLAMA_NAMES,
    Alternate,
    Either,
    Microscaled,
    Origin,
    Transposed,
)
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 150_000.0
ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
DEFAULTS = {"sliding_window": 128, "head_dim": 64, "rope_parameters": ROPE}
"""Where a `config.json` does not say it."""
FULL_EVERY = 2
"""Layers 1, 3, ... see everything."""
_MLP, _EXPERTS = "model.layers.{i}.mlp", "model.layers.{i}.mlp.experts"


def _halves(name: str, first: Literal[0, 1]) -> dict[str, Origin]:
    """gate or up: every other column of a stack, every other row of its blocks."""
    blocks = Microscaled(f"{_EXPERTS}.gate_up_proj_blocks", f"{_EXPERTS}.gate_up_proj_scales")
    floats = Transposed(Alternate(f"{_EXPERTS}.gate_up_proj", -1, first))
    return {
        f"blk.{{i}}.ffn_{name}_exps.weight": Either((Alternate(blocks, -2, first), floats)),
        f"blk.{{i}}.ffn_{name}_exps.bias": Alternate(f"{_EXPERTS}.gate_up_proj_bias", -1, first),
    }


HF_NAMES = (
    LLAMA_NAMES
    | _halves("gate", 0)
    | _halves("up", 1)
    | {
        "blk.{i}.attn_sinks.weight": "model.layers.{i}.self_attn.sinks",
        "blk.{i}.ffn_gate_inp.weight": f"{_MLP}.router.weight",
        "blk.{i}.ffn_gate_inp.bias": f"{_MLP}.router.bias",
        "blk.{i}.ffn_down_exps.weight": Either(
            (
                Microscaled(f"{_EXPERTS}.down_proj_blocks", f"{_EXPERTS}.down_proj_scales"),
                Transposed(f"{_EXPERTS}.down_proj"),
            )
        ),
        "blk.{i}.ffn_down_exps.bias": f"{_EXPERTS}.down_proj_bias",
    }
)
RENAMED = {"ffn_norm.weight": "post_attention_norm.weight"}


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gpt-oss")
    sizes = values.sizes(tensors, intermediate="expert_feed_forward_length")
    experts = values.experts(sizes.intermediate)
    rope = values.rope(sizes.head_dim, THETA, truncate=False)
    values.refuse_local_rope(rope)
    window = values.count("attention.sliding_window")
    windows = [window if one else None for one in values.windowed(sizes.layers, FULL_EVERY)]
    return plan_weights(_spec(sizes, experts, windows, rope, has_bias=True), tensors, names=RENAMED)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, DEFAULTS)
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("swiglu_alpha", 1.702)
    values.refuse_unless("swiglu_limit", 7.0)
    sizes = values.sizes("gpt-oss")
    experts = values.experts(sizes.intermediate)
    rope = values.rope(sizes.head_dim, THETA)
    window = values.count("sliding_window")
    windows = [window if one else None for one in values.windowed(sizes.layers, FULL_EVERY)]
    has_bias = values.flag("attention_bias", True)
    return _spec(sizes, experts, windows, rope, has_bias=has_bias)


def _spec(
    sizes: Sizes,
    experts: ExpertsSpec,
    windows: Sequence[int | None],
    rope: RopeSpec,
    *,
    has_bias: bool,
) -> ModelSpec:
    """has_bias: attention has biases; experts always have."""
    mixer = replace(sizes.attention(), learned_sinks=True, qkv_bias=has_bias, output_bias=has_bias)
    experts = replace(experts, activation="clamped_swiglu", router="top_then_softmax", bias=True)
    layers = [LayerSpec(replace(mixer, window=window), experts) for window in windows]
    return sizes.model(layers, [rope])
