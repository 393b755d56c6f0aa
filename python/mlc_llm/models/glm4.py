"""GLM-4 of 2025 (GLM-4-0414, Zhipu AI): norms before and after each half-layer, a fused network,
and a rotation of a part of each head, whose pairs are neighbours in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import FUSED_NETWORK, LLAMA_NAMES, layers
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA, PART = 10_000.0, 0.5
"""Where a file does not say it; PART: how much of a head is rotated."""
_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
HF_NAMES = replace(LLAMA_NAMES | FUSED_NETWORK | layers(_NORMS), interleaved_rope=True)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "glm4")
    values.refuse_unless("rope.dimension_sections")
    sizes = values.sizes(tensors)
    mlp, rope = DenseSpec(sizes.intermediate), values.rope(sizes.head_dim, THETA)
    has_bias = any(f"blk.0.{name}.bias" in tensors for name in ("attn_q", "attn_qkv"))
    return plan_weights(_spec(sizes, rope, mlp, has_bias), tensors, interleaved_rope=True)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    sizes = values.sizes("glm4")
    mlp = DenseSpec(sizes.intermediate, values.activation())
    rope = values.rope(sizes.head_dim, THETA, PART)
    return _spec(sizes, rope, mlp, values.flag("attention_bias", True))


def _spec(sizes: Sizes, rope: RopeSpec, mlp: DenseSpec, has_bias: bool) -> ModelSpec:
    """has_bias: that the matrices of queries, keys and values have one."""
    mixer = replace(sizes.attention(), qkv_bias=has_bias)
    return sizes.model([LayerSpec(mixer, mlp, post_norms=True)] * sizes.layers, [rope])
