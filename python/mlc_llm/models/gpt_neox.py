"""GPT-NeoX (Black et al. 2022) and Pythia: layer norms, biases, a network without a gate, a
rotation of a part of each head, and layers whose two parts read the same x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import FolderNames, fused_heads
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA, PART = 10_000.0, 0.25
"""Where a file does not say it; PART: how much of a head is rotated."""
_LAYER = "gpt_neox.layers.{i}"
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
HF_NAMES = FolderNames(
    {
        "token_embd.weight": "gpt_neox.embed_in.weight",
        "output_norm.weight": "gpt_neox.final_layer_norm.weight",
        "output_norm.bias": "gpt_neox.final_layer_norm.bias",
        "output.weight": "embed_out.weight",
        **{
            f"blk.{{i}}.{name}.{end}": f"{_LAYER}.{part}.{end}"
            for name, part in _PARTS.items()
            for end in ("weight", "bias")
        },
        **fused_heads(f"{_LAYER}.attention.query_key_value.weight", "weight"),
        **fused_heads(f"{_LAYER}.attention.query_key_value.bias", "bias"),
    },
    ignored=(
        f"{_LAYER}.attention.bias",
        f"{_LAYER}.attention.masked_bias",
        f"{_LAYER}.attention.rotary_emb.inv_freq",
    ),
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """GGUF does not name the activation: it is that of Pythia. Raises UnsupportedModel or
    ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gptneox")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS)
    rope, parallel = values.rope(sizes.head_dim, THETA), values.flag("use_parallel_residual", True)
    has_bias = "blk.0.attn_output.bias" in tensors
    return plan_weights(_spec(sizes, rope, "gelu", parallel, has_bias), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    sizes = values.sizes("gptneox", eps="layer_norm_eps")
    values.refuse_unless("rope_scaling")
    rope = _renamed(values, config).rope(sizes.head_dim, THETA, PART)
    parallel = values.flag("use_parallel_residual", True)
    has_bias = values.flag("attention_bias", True)
    return _spec(sizes, rope, values.activation(), parallel, has_bias)


def _renamed(values: ConfigValues, config: Mapping[str, object]) -> ConfigValues:
    """With the names that other models have for the fields of the rotary embedding."""
    theta, part = values.positive("rotary_emb_base", THETA), values.positive("rotary_pct", PART)
    return ConfigValues({**config, "rope_theta": theta, "partial_rotary_factor": part})


def _spec(
    sizes: Sizes, rope: RopeSpec, activation: Activation, parallel: bool, has_bias: bool
) -> ModelSpec:
    """has_bias: that the matrices of attention have one."""
    mixer = replace(sizes.attention(), qkv_bias=has_bias, output_bias=has_bias)
    mlp = DenseSpec(sizes.intermediate, activation, bias=True, gated=False)
    layer = LayerSpec(mixer, mlp, parallel=parallel)
    return replace(sizes.model([layer] * sizes.layers, [rope]), norm="layer")
