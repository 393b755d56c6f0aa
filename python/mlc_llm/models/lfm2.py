"""LFM2 (Liquid AI 2025): most layers are short convolutions, the others attention as in Qwen3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import ShortConvSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, Squeezed, layers
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA = 1_000_000.0
KERNEL = 3
"""Tokens of a convolution, where a `config.json` does not say it."""
CONV, ATTENTION = "conv", "full_attention"
"""Names of layers in a `config.json`."""
LAST_NORM = "token_embd_norm.weight"
"""Converters call the norm before the head so."""
HF_NAMES = (
    LLAMA_NAMES
    | layers(
        {
            "attn_norm": "operator_norm",
            "ffn_norm": "ffn_norm",
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_gate": "feed_forward.w1",
            "ffn_down": "feed_forward.w2",
            "ffn_up": "feed_forward.w3",
        }
    )
    | {
        "output_norm.weight": "model.embedding_norm.weight",
        "blk.{i}.shortconv.conv.weight": Squeezed("model.layers.{i}.conv.conv.weight"),
    }
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "lfm2")
    values.refuse_unless("attention.sliding_window", 0)
    spec = gguf_spec(values, tensors)
    return plan_weights(spec, tensors, last_norm=LAST_NORM)


def gguf_spec(values: GGUFValues, tensors: Tensors) -> ModelSpec:
    """Of an architecture that is an LFM2. Raises UnsupportedModel, ModelFileError."""
    per_layer = values.numbers("attention.head_count_kv", values.layer_count(tensors))
    kv_heads = max(per_layer)
    values.check(
        "attention.head_count_kv",
        kv_heads > 0 and set(per_layer) <= {0, kv_heads},
        "one number for all layers of attention, and 0 for others",
    )
    sizes = values.sizes(tensors, kv_heads=kv_heads)
    kernel, rope = values.count("shortconv.l_cache"), values.rope(sizes.head_dim, THETA)
    return _spec(sizes, rope, kernel, [count > 0 for count in per_layer])


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    return config_spec(ConfigValues(config), "lfm2")


def config_spec(values: ConfigValues, name: str) -> ModelSpec:
    """An LFM2. name: of the spec's architecture. Raises UnsupportedModel, ModelFileError."""
    values.refuse_unless("conv_bias", False)
    sizes = values.sizes(name, tied_head=True, eps="norm_eps", intermediate=_of(values))
    sizes = replace(sizes, intermediate=_adjusted(values, sizes.intermediate))
    if values.has("tie_embedding"):
        sizes = replace(sizes, tied_head=values.flag("tie_embedding"))
    rope = values.rope(sizes.head_dim, THETA)
    return _spec(sizes, rope, values.count("conv_L_cache", KERNEL), _kinds(values, sizes.layers))


def _of(values: Values) -> str:
    """The field of the feed-forward network's size."""
    return "block_ff_dim" if values.has("block_ff_dim") else "intermediate_size"


def _adjusted(values: Values, wide: int) -> int:
    """The size that the network really has."""
    if not values.flag("block_auto_adjust_ff_dim", True):
        return wide
    wide = int(values.positive("block_ffn_dim_multiplier", 1.0) * int(2 * wide / 3))
    multiple = values.count("block_multiple_of", 256)
    return -(-wide // multiple) * multiple


def _kinds(values: Values, layers: int) -> list[bool]:
    """Whether each layer has attention."""
    if values.has("layer_types"):
        names = values.texts("layer_types", layers, (CONV, ATTENTION))
        return [name == ATTENTION for name in names]
    found = values.counts("full_attn_idxs", layers, range(layers))
    return [i in found for i in range(layers)]


def _spec(sizes: Sizes, rope: RopeSpec, kernel: int, has_attention: Sequence[bool]) -> ModelSpec:
    mlp = DenseSpec(sizes.intermediate)
    attention = LayerSpec(replace(sizes.attention(), qk_norm="head"), mlp)
    conv = LayerSpec(ShortConvSpec(sizes.hidden, kernel), mlp)
    return sizes.model([attention if one else conv for one in has_attention], [rope])
