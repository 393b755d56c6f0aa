"""Phi-3 and Phi-4 (Abdin et al. 2024): a Llama with fused matrices. Some rotate a part of each
head, and some have LongRoPE: other rotary frequencies where a text may be long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import TRAINED, ConfigValues, longrope_of
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import FUSED_NETWORK, LLAMA_NAMES, fused_qkv
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 10_000.0
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rotary frequencies, as converters write them."""
CONTEXT = 4096
"""Of the first training, where a `config.json` does not say it."""
HF_NAMES = LLAMA_NAMES | FUSED_NETWORK | fused_qkv("model.layers.{i}.self_attn.qkv_proj.weight")


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "phi3")
    sizes = values.sizes(tensors)
    if LONG in tensors or values.get("rope.scaling.type") == "longrope":
        values.refuse_unless("rope.scaling.type", "none", "longrope")
        rope = RopeSpec(
            values.positive("rope.freq_base", THETA),
            values.count("rope.dimension_count", sizes.head_dim),
            magnitude=values.positive("rope.scaling.attn_factor", 1.0),
            factors=SHORT,
            long_factors=LONG,
            long_after=values.count("rope.scaling.original_context_length"),
        )
    else:
        values.refuse_unless("rope.scaling.type", "none", "linear")
        rope = values.rope(sizes.head_dim, THETA)
    window = values.window("attention.sliding_window", sizes.context_window)
    return plan_weights(_spec(sizes, rope, DenseSpec(sizes.intermediate), window), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    sizes = values.sizes("phi3")
    mlp = DenseSpec(sizes.intermediate, values.activation())
    window = values.window("sliding_window", sizes.context_window)
    return _spec(sizes, _rope(values, sizes), mlp, window)


def _rope(values: ConfigValues, sizes: Sizes) -> RopeSpec:
    inner = values.rope_fields() or ConfigValues({})
    theta = inner.positive("rope_theta", values.positive("rope_theta", THETA))
    part = inner.positive("partial_rotary_factor", values.positive("partial_rotary_factor", 1.0))
    rope = RopeSpec(theta, int(sizes.head_dim * part))
    name = "rope_type" if inner.has("rope_type") else "type"
    is_long = {"default": False, "longrope": True, "su": True, "yarn": True}  # names of one thing
    if not inner.choice(name, is_long, "default"):
        return rope
    trained = values.count(TRAINED, CONTEXT)
    return longrope_of(inner.also({TRAINED: trained}), rope, sizes.context_window)


def _spec(sizes: Sizes, rope: RopeSpec, mlp: DenseSpec, window: int | None) -> ModelSpec:
    mixer = replace(sizes.attention(), window=window)
    return sizes.model([LayerSpec(mixer, mlp)] * sizes.layers, [rope])
