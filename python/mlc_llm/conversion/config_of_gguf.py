"""The config.json that stands for a GGUF file's metadata.

It is written from the spec and read again: only if that gives the same spec is it used.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mlc_llm.errors import MLCError, UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.registry import ROWS, Architecture, read_config
from mlc_llm.models.spec import ModelSpec
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.quantization.ggml_blocks import dequantize

JsonObject = dict[str, JsonValue]
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3_CONTEXT = 8192
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}


def config_of(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> JsonObject:
    """A config.json. tensors: of the GGUF file. Raises UnsupportedModel if there is none that says
    all that the file says."""
    if spec.encoder is not None:
        raise UnsupportedModel(
            f"a {spec.architecture} model is an encoder, which cannot be written in another format"
        )
    rows = [row for row in ROWS if row.gguf == spec.architecture]
    ropes = _ropes(spec.ropes[0]) if spec.ropes and spec.attention_layers else []
    for row, rope, bias in itertools.product(rows, ropes, _biases(spec)):
        config = _common(spec, row) | bias | _network(spec) | rope
        config |= _windows(spec) | _factors(spec)
        if _says(config, spec, tensors):
            return config
    raise UnsupportedModel(
        f"the metadata of this {spec.architecture} model cannot be written as a config.json; "
        "convert its Hugging Face folder"
    )


def _common(spec: ModelSpec, row: Architecture) -> JsonObject:
    mixer = next(iter(spec.attention_layers.values()))
    return {
        "architectures": [row.config],
        "model_type": row.model_type,
        "hidden_size": spec.hidden,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context_window,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_head,
    }


def _biases(spec: ModelSpec) -> list[JsonObject]:
    """What may say which matrices of attention have a bias; some architectures do without."""
    mixer = next(iter(spec.attention_layers.values()), None)
    if mixer is None:
        return []
    return [{"attention_bias": mixer.qkv_bias}, {}]


def _network(spec: ModelSpec) -> JsonObject:
    """The fields of the feed-forward network of the last layer."""
    one = spec.layers[-1].feed_forward
    act: JsonObject = {"hidden_act": _ACTIVATIONS.get(one.activation, one.activation)}
    if isinstance(one, DenseSpec):
        return {**act, "intermediate_size": one.intermediate, "mlp_bias": one.bias}
    assert isinstance(one, ExpertsSpec)
    return {
        **act,
        "intermediate_size": one.intermediate,
        "moe_intermediate_size": one.intermediate,
        "num_experts": one.num_experts,
        "num_local_experts": one.num_experts,
        "num_experts_per_tok": one.experts_per_token,
        "norm_topk_prob": one.renormalize,
    }


def _ropes(rope: RopeSpec) -> list[JsonObject]:
    """What may stand for the rotary embedding; Llama 3's factors are tried."""
    base: JsonObject = {"rope_theta": rope.theta}
    if rope.factors is None and rope.linear == 1.0:
        return [base]
    if rope.factors is None:
        return [{**base, "rope_scaling": {"rope_type": "linear", "factor": rope.linear}}]
    scalings: list[JsonObject] = [
        {
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": _LLAMA3_CONTEXT,
            **_LLAMA3,
        }
        for factor in _LLAMA3_FACTORS
    ]
    return [{**base, "rope_scaling": one} for one in scalings]


def _windows(spec: ModelSpec) -> JsonObject:
    """Which layers see through a window. All or none need no list."""
    windows = [one.window for one in spec.attention_layers.values()]
    if not any(windows):
        return {"sliding_window": None, "use_sliding_window": False}
    kinds: JsonValue = ["sliding_attention" if one else "full_attention" for one in windows]
    size: JsonValue = next(one for one in windows if one)
    return {"sliding_window": size} | ({} if all(windows) else {"layer_types": kinds})


def _factors(spec: ModelSpec) -> JsonObject:
    """What Gemma and Granite multiply and cap."""
    mixer = next(iter(spec.attention_layers.values()))
    if spec.architecture.startswith("granite"):
        return {
            "embedding_multiplier": spec.embedding_scale,
            "attention_multiplier": mixer.scale,
            "residual_multiplier": spec.layers[0].residual_scale,
            "logits_scaling": 1 / spec.logit_scale,
        }
    if not spec.architecture.startswith("gemma"):
        return {}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(mixer.scale**-2),
        "rope_local_base_freq": spec.ropes[-1].theta,
        "final_logit_softcapping": spec.logit_cap,
        "attn_logit_softcapping": mixer.score_cap,
    }


def _says(config: JsonObject, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a config.json gives the spec, but for the types of tensors."""
    try:
        read = read_config(json.loads(json.dumps(config)))
    except MLCError:
        return False
    if not all(map(_same_rope, read.ropes, spec.ropes, [tensors] * len(spec.ropes))):
        return False
    return _plain(read) == _plain(spec)


def _plain(spec: ModelSpec) -> ModelSpec:
    layers = tuple(
        replace(one, mixer=replace(one.mixer, scale=round(one.mixer.scale, 12)))
        if isinstance(one.mixer, AttentionSpec)
        else one
        for one in spec.layers
    )
    return replace(spec, layers=layers, ropes=(), kinds={}, active_vocab=None)


def _same_rope(one: RopeSpec, other: RopeSpec, tensors: Mapping[str, Tensor]) -> bool:
    if isinstance(other.factors, str):
        tensor = tensors[other.factors]
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        found = one.factors is not None and np.allclose(values, np.array(one.factors), rtol=1e-5)
        return found and replace(one, factors=None) == replace(other, factors=None)
    return one == other
