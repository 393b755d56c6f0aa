"""Qwen3.5 (Qwen Team 2026): three layers of gated delta rules, then one of gated attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.network_spec import DenseSpec, FeedForward
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LLAMA_NAMES, MinusExp, PlusOne, Squeezed
from mlc_llm.models.weight_plan import TensorInfo, Tensors, WeightPlan, plan_weights

THETA, ROTATED, EVERY = 10_000.0, 0.25, 4
"""The base, how much of a head is rotated, and how far layers of attention are apart, where a
`config.json` does not say it."""
RECURRENT, ATTENTION = "linear_attention", "full_attention"
"""Names of layers in a `config.json`."""
SIZES = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
"""What a `config.json` may leave out."""
NORMS = {"ffn_norm.weight": "post_attention_norm.weight"}
"""Names that GGUF files have for vectors of a layer."""
_LAYER = "model.layers.{i}"
_MIXER = f"{_LAYER}.linear_attn"
HF_NAMES = (
    LLAMA_NAMES
    | {
        "output_norm.weight": PlusOne("model.norm.weight"),
        "blk.{i}.attn_norm.weight": PlusOne(f"{_LAYER}.input_layernorm.weight"),
        "blk.{i}.ffn_norm.weight": PlusOne(f"{_LAYER}.post_attention_layernorm.weight"),
        "blk.{i}.attn_q_norm.weight": PlusOne(f"{_LAYER}.self_attn.q_norm.weight"),
        "blk.{i}.attn_k_norm.weight": PlusOne(f"{_LAYER}.self_attn.k_norm.weight"),
        "blk.{i}.attn_qkv.weight": f"{_MIXER}.in_proj_qkv.weight",
        "blk.{i}.attn_gate.weight": f"{_MIXER}.in_proj_z.weight",
        "blk.{i}.ssm_alpha.weight": f"{_MIXER}.in_proj_a.weight",
        "blk.{i}.ssm_beta.weight": f"{_MIXER}.in_proj_b.weight",
        "blk.{i}.ssm_out.weight": f"{_MIXER}.out_proj.weight",
        "blk.{i}.ssm_conv1d.weight": Squeezed(f"{_MIXER}.conv1d.weight"),
        "blk.{i}.ssm_dt.bias": f"{_MIXER}.dt_bias",
        "blk.{i}.ssm_a": MinusExp(f"{_MIXER}.A_log"),
        "blk.{i}.ssm_norm.weight": f"{_MIXER}.norm.weight",
    }
).ignoring("mtp.{any}")
"""The head that drafts tokens (mtp) is not computed."""


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "qwen35")
    sizes, tensors = without_drafts(values, values.sizes(tensors), tensors)
    # The converter puts the heads of values in turn.
    mixer = replace(gguf_mixer(values), in_turn=True)
    rope, network = values.rope(sizes.head_dim, THETA), DenseSpec(sizes.intermediate)
    spec = delta_spec(sizes, rope, mixer, network, attends(values, sizes.layers))
    return plan_weights(spec, tensors, names=NORMS)


def without_drafts(
    values: GGUFValues, sizes: Sizes, tensors: Tensors
) -> tuple[Sizes, Mapping[str, TensorInfo]]:
    """The sizes and the tensors without the last layers, which draft tokens. Raises
    ModelFileError."""
    drafts = values.whole("nextn_predict_layers")
    values.check("nextn_predict_layers", drafts < sizes.layers, f"less than {sizes.layers}")
    left = replace(sizes, layers=sizes.layers - drafts)
    dropped = tuple(f"blk.{i}." for i in range(left.layers, sizes.layers))
    return left, {name: one for name, one in tensors.items() if not name.startswith(dropped)}


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config, SIZES)
    sizes = values.sizes("qwen35")
    return config_spec(values, sizes, DenseSpec(sizes.intermediate))


def config_spec(values: ConfigValues, sizes: Sizes, network: FeedForward) -> ModelSpec:
    """network: of every layer. Raises UnsupportedModel or ModelFileError."""
    values.refuse_unless("hidden_act", "silu")
    values.refuse_unless("attention_bias", False)
    mixer = GatedDeltaSpec(
        values.count("linear_num_key_heads"), values.count("linear_key_head_dim"),
        values.count("linear_num_value_heads"), values.count("linear_value_head_dim"),
        values.count("linear_conv_kernel_dim"),
    )  # fmt: skip
    rope = values.rope(sizes.head_dim, THETA, ROTATED)
    if values.has("layer_types"):
        names = values.texts("layer_types", sizes.layers, (RECURRENT, ATTENTION))
        has_attention = [name == ATTENTION for name in names]
    else:
        every = values.count("full_attention_interval", EVERY)
        has_attention = [(i + 1) % every == 0 for i in range(sizes.layers)]
    return delta_spec(sizes, rope, mixer, network, has_attention)


def gguf_mixer(values: GGUFValues) -> GatedDeltaSpec:
    """Raises ModelFileError."""
    heads, inner = values.count("ssm.time_step_rank"), values.count("ssm.inner_size")
    values.check("ssm.inner_size", inner % heads == 0, f"a multiple of {heads}")
    key_heads, key_dim = values.count("ssm.group_count"), values.count("ssm.state_size")
    kernel = values.count("ssm.conv_kernel")
    return GatedDeltaSpec(key_heads, key_dim, heads, inner // heads, kernel)


def attends(values: GGUFValues, layers: int) -> list[bool]:
    """Which layers have attention. Raises ModelFileError."""
    key = "attention.recurrent_layers"
    if values.has(key):
        stated = values.get(key)
        length = len(stated) if isinstance(stated, list) else layers
        return [not one for one in values.flags(key, length)][:layers]
    every = values.count("full_attention_interval", EVERY)
    return [(i + 1) % every == 0 for i in range(layers)]


def delta_spec(
    sizes: Sizes,
    rope: RopeSpec,
    mixer: GatedDeltaSpec,
    network: FeedForward,
    has_attention: Sequence[bool],
) -> ModelSpec:
    """has_attention: of each layer."""
    attention = LayerSpec(replace(sizes.attention(), qk_norm="head", gated=True), network)
    recurrent = LayerSpec(mixer, network)
    return sizes.model([attention if one else recurrent for one in has_attention], [rope])
