"""The parameters of a model that are no matrices, each with the name of its tensor in GGUF."""

from __future__ import annotations

from typing import NamedTuple

from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.image_spec import TowerSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.spec import LayerSpec, Mixer, ModelSpec

LAST_NORM = "output_norm.weight"
"""The norm before the head."""
EMBEDDING_NORM = "token_embd_norm.weight"


class Vector(NamedTuple):
    """A vector of a layer, or a few: the tensor's name behind the layer's number, and the shape."""

    tensor: str
    shape: tuple[int, ...]
    rope_heads: int = 0
    """The heads whose rows are reordered if the file pairs neighbouring ones; 0: none are."""


def model_vectors(spec: ModelSpec) -> dict[str, Vector]:
    """Vectors and tables that belong to no layer, by parameter name."""
    if spec.tower is not None:
        found = _tower_vectors(spec, spec.tower)
    elif spec.encoder is None:
        found = _norm_vectors(spec, "norm", LAST_NORM)
        if spec.embedding_norm:
            found |= _norm_vectors(spec, "embedding_norm", EMBEDDING_NORM)
    else:
        found = _encoder_vectors(spec, spec.encoder)
    if spec.learned_positions:
        table = (spec.learned_positions, spec.hidden)
        found["positions"] = Vector("position_embd.weight", table)
    if spec.token_inputs:
        width = max(layer.token_input for layer in spec.layers)
        found["token_norm"] = Vector("per_layer_proj_norm.weight", (width,))
    return found


def _tower_vectors(spec: ModelSpec, tower: TowerSpec) -> dict[str, Vector]:
    found = _norm_vectors(spec, "norm", LAST_NORM)
    found["patch_bias"] = Vector("patch_embd.bias", (spec.hidden,))
    if tower.join == "mean":
        found["join_norm"] = Vector("join_norm.weight", (spec.hidden,))
    return found


def _encoder_vectors(spec: ModelSpec, encoder: EncoderSpec) -> dict[str, Vector]:
    found: dict[str, Vector] = {}
    if encoder.embedding_norm:
        found |= _norm_vectors(spec, "embedding_norm", EMBEDDING_NORM)
    if encoder.last_norm:
        found |= _norm_vectors(spec, "norm", LAST_NORM)
    if encoder.token_types:
        table = (encoder.token_types, spec.hidden)
        found["token_types"] = Vector("token_types.weight", table)
    if encoder.labels:
        if encoder.pair.bias:
            found["pair_dense_bias"] = Vector("cls.bias", (spec.hidden,))
        if encoder.pair.norm:
            found |= _norm_vectors(spec, "pair_norm", "cls.norm.weight")
        found["pair_out"] = Vector("cls.output.weight", (encoder.labels, spec.hidden))
        found["pair_out_bias"] = Vector("cls.output.bias", (encoder.labels,))
    return found


def layer_vectors(spec: ModelSpec, layer: LayerSpec) -> dict[str, Vector]:
    """Vectors that a layer has, by parameter name."""
    found: dict[str, Vector] = {}
    hidden = spec.hidden
    if layer.pre_norms:
        if layer.mixer_norm:
            found |= _norm_vectors(spec, "attention_norm", "attn_norm.weight")
        if layer.has_network and not layer.one_norm:
            found |= _norm_vectors(spec, "mlp_norm", "ffn_norm.weight")
    for one in layer.mixers:
        found |= _mixer_vectors(hidden, one)
    found |= _later_norms(spec, layer)
    mlp = layer.feed_forward
    if isinstance(mlp, DenseSpec) and mlp.bias:
        if mlp.gated:
            found["gate_bias"] = Vector("ffn_gate.bias", (mlp.intermediate,))
        found["up_bias"] = Vector("ffn_up.bias", (mlp.intermediate,))
        found["down_bias"] = Vector("ffn_down.bias", (hidden,))
    if isinstance(mlp, DenseSpec) and mlp.shifted:
        found["channel_factors"] = Vector("channel_mix_lerp_k.weight", (1, hidden))
    if isinstance(mlp, ExpertsSpec) and mlp.bias:
        found |= _expert_biases(hidden, mlp)
    if isinstance(mlp, ExpertsSpec) and mlp.choice_bias:
        found["choice_bias"] = Vector("exp_probs_b.bias", (mlp.num_experts,))
    if isinstance(mlp, ExpertsSpec) and mlp.shared_gate:
        found["shared_gate"] = Vector("ffn_gate_inp_shexp.weight", (hidden,))
    if layer.token_input:
        found["token_post_norm"] = Vector("post_norm.weight", (hidden,))
    if layer.output_scale:
        found["output_scale"] = Vector("layer_output_scale.weight", (1,))
    return found


def _later_norms(spec: ModelSpec, layer: LayerSpec) -> dict[str, Vector]:
    """Before and behind the sums of a layer."""
    found: dict[str, Vector] = {}
    if layer.post_norms:
        found["attention_post_norm"] = Vector("post_attention_norm.weight", (spec.hidden,))
        found["mlp_post_norm"] = Vector("post_ffw_norm.weight", (spec.hidden,))
    if layer.sum_norms:
        found |= _norm_vectors(spec, "attention_sum_norm", "attn_output_norm.weight")
        found |= _norm_vectors(spec, "mlp_sum_norm", "layer_output_norm.weight")
    return found


def _mixer_vectors(hidden: int, spec: Mixer) -> dict[str, Vector]:
    if isinstance(spec, ShortConvSpec):
        return {"conv": Vector("shortconv.conv.weight", (spec.width, spec.kernel))}
    if isinstance(spec, Mamba2Spec):
        return _mamba2_vectors(spec)
    if isinstance(spec, GatedDeltaSpec):
        return _delta_vectors(spec)
    if isinstance(spec, Rwkv7Spec):
        return _rwkv7_vectors(spec)
    return _attention_vectors(hidden, spec)


def _mamba2_vectors(spec: Mamba2Spec) -> dict[str, Vector]:
    norm = {"ssm_norm": Vector("ssm_norm.weight", (spec.groups, spec.inner // spec.groups))}
    return {
        "ssm_conv": Vector("ssm_conv1d.weight", (spec.channels, spec.kernel)),
        "ssm_conv_bias": Vector("ssm_conv1d.bias", (spec.channels,)),
        "ssm_dt_bias": Vector("ssm_dt.bias", (spec.heads,)),
        "ssm_a": Vector("ssm_a", (spec.heads, 1)),
        "ssm_d": Vector("ssm_d", (spec.heads, 1)),
        **(norm if spec.norm else {}),
    }


def _delta_vectors(spec: GatedDeltaSpec) -> dict[str, Vector]:
    return {
        "delta_conv": Vector("ssm_conv1d.weight", (spec.channels, spec.kernel)),
        "delta_dt_bias": Vector("ssm_dt.bias", (spec.heads,)),
        "delta_a": Vector("ssm_a", (spec.heads,)),
        "delta_norm": Vector("ssm_norm.weight", (spec.head_dim,)),
    }


def _rwkv7_vectors(spec: Rwkv7Spec) -> dict[str, Vector]:
    names = ["w0", "a0", *(["v0"] if spec.value_rank else []), "k_k", "k_a", "r_k"]
    return {
        "mix_factors": Vector("time_mix_lerp_fused.weight", (6, spec.width)),
        **{f"mix_{name}": Vector(f"time_mix_{name}.weight", (spec.width,)) for name in names},
        "mix_norm": Vector("time_mix_ln.weight", (spec.width,)),
        "mix_norm_bias": Vector("time_mix_ln.bias", (spec.width,)),
    }


def _expert_biases(hidden: int, spec: ExpertsSpec) -> dict[str, Vector]:
    count, wide = spec.num_experts, spec.intermediate
    return {
        "router_bias": Vector("ffn_gate_inp.bias", (count,)),
        "expert_gate_bias": Vector("ffn_gate_exps.bias", (count, wide)),
        "expert_up_bias": Vector("ffn_up_exps.bias", (count, wide)),
        "expert_down_bias": Vector("ffn_down_exps.bias", (count, hidden)),
    }


def _norm_vectors(spec: ModelSpec, name: str, tensor: str) -> dict[str, Vector]:
    found = {name: Vector(tensor, (spec.hidden,))}
    if spec.norm == "layer" and spec.norm_bias:
        bias = f"{tensor.removesuffix('weight')}bias"
        found[f"{name}_bias"] = Vector(bias, (spec.hidden,))
    return found


def _attention_vectors(hidden: int, spec: AttentionSpec) -> dict[str, Vector]:
    found = {}
    if spec.qk_norm == "head":
        found["q_norm"] = Vector("attn_q_norm.weight", (spec.head_dim,), 1)
        if spec.shares is None:
            found["k_norm"] = Vector("attn_k_norm.weight", (spec.head_dim,), 1)
    elif spec.qk_norm == "all":
        found["q_norm"] = Vector("attn_q_norm.weight", (spec.query_width,), spec.heads)
        found["k_norm"] = Vector("attn_k_norm.weight", (spec.kv_width,), spec.kv_heads)
    if spec.qkv_bias:
        found["q_bias"] = Vector("attn_q.bias", (spec.query_width,), spec.heads)
        found["k_bias"] = Vector("attn_k.bias", (spec.kv_width,), spec.kv_heads)
        found["v_bias"] = Vector("attn_v.bias", (spec.kv_width,))
    if spec.output_bias:
        found["o_bias"] = Vector("attn_output.bias", (hidden,))
    if spec.learned_sinks:
        found["learned_sinks"] = Vector("attn_sinks.weight", (spec.heads,))
    return found
