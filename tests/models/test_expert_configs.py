"""Architectures with experts: config.json and GGUF headers say the same, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.gpt_oss import RENAMED
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.registry import architecture_of, read_config, read_gguf
from mlc_llm.models.weight_plan import wanted_tensors

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 0.5,
    "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
}  # fmt: skip
METADATA = {
    "embedding_length": 64, "block_count": 3, "attention.head_count": 4,
    "attention.head_count_kv": 2, "feed_forward_length": 96, "context_length": 512,
    "attention.layer_norm_rms_epsilon": 0.5, "rope.freq_base": 500000.0, "expert_count": 6,
    "expert_used_count": 2,
}  # fmt: skip
MIXTRAL = SIZES | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 6}
OLMOE = SIZES | {"architectures": ["OlmoeForCausalLM"], "num_experts": 6, "clip_qkv": None}
QWEN2_MOE = SIZES | {
    "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 6, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
QWEN2_KEYS = {"expert_feed_forward_length": 48, "expert_shared_feed_forward_length": 32}
GRANITE = SIZES | {
    "architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 6,
    "attention_multiplier": 0.125, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
    "residual_multiplier": 0.25, "attention_bias": True,
}  # fmt: skip
GRANITE_SCALES = {
    "attention.scale": 0.125, "embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.25
}  # fmt: skip
SHARED = GRANITE | {
    "architectures": ["GraniteMoeSharedForCausalLM"], "shared_intermediate_size": 32
}  # fmt: skip
GPT_OSS = SIZES | {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 6, "head_dim": 32,
    "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": True,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
LFM2_MOE = SIZES | {
    "architectures": ["Lfm2MoeForCausalLM"], "num_experts": 6, "moe_intermediate_size": 48,
    "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 0.5,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
LFM2_KEYS = {
    "expert_feed_forward_length": 48, "leading_dense_block_count": 1, "expert_gating_func": 2,
    "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "expert_weights_scale": 1.5,
}  # fmt: skip
GPT_OSS_KEYS = {
    "attention.key_length": 32, "attention.sliding_window": 128, "expert_feed_forward_length": 96,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 4096,
}  # fmt: skip


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    kind: str = "F32"


@pytest.mark.parametrize(
    ("config", "more", "renamed"),
    [
        (MIXTRAL, {}, {}),
        (OLMOE, {}, {}),
        (QWEN2_MOE, QWEN2_KEYS, {}),
        (GRANITE, GRANITE_SCALES, {}),
        (SHARED, GRANITE_SCALES | {"expert_shared_feed_forward_length": 32}, {}),
        (GPT_OSS, GPT_OSS_KEYS, RENAMED),
    ],
    ids=["mixtral", "olmoe", "qwen2_moe", "granitemoe", "granitemoeshared", "gpt_oss"],
)
def test_the_spec_is_that_of_the_gguf_file(
    config: dict[str, Any], more: dict[str, Any], renamed: dict[str, str]
) -> None:
    expected, row = read_config(config), architecture_of(config)
    tensors = {}
    for name, shape in wanted_tensors(expected).items():
        layer, _, part = name.partition(".")[2].partition(".")
        other = f"blk.{layer}.{renamed[part]}" if part in renamed else name
        tensors[other] = Info(shape)
    own = {f"{row.gguf}.{key}": value for key, value in (METADATA | more).items()}
    plan = read_gguf({"general.architecture": row.gguf, **own}, tensors)
    assert replace(plan.spec, kinds={}) == expected
    assert read_config({**config, "architectures": None, "model_type": row.model_type}) == expected


def test_an_lfm2_with_experts() -> None:
    spec = read_config(LFM2_MOE)
    dense, *others = (layer.feed_forward for layer in spec.layers)
    experts = ExpertsSpec(
        6, 2, 48, router="sigmoid_then_top", renormalize=True, choice_bias=True, weight_scale=1.5
    )
    assert (dense, others) == (DenseSpec(96), [experts, experts])
    tensors = {
        {"output_norm.weight": "token_embd_norm.weight"}.get(name, name): Info(shape)
        for name, shape in wanted_tensors(spec).items()
    }
    own = {f"lfm2moe.{key}": value for key, value in (METADATA | LFM2_KEYS).items()}
    header = {"general.architecture": "lfm2moe", **own}
    assert replace(read_gguf(header, tensors).spec, kinds={}) == spec
    with pytest.raises(UnsupportedModel, match="expert_gating_func is 1"):
        read_gguf(header | {"lfm2moe.expert_gating_func": 1}, tensors)
    unbiased = read_config(LFM2_MOE | {"use_expert_bias": False})
    assert "blk.1.exp_probs_b.bias" not in wanted_tensors(unbiased)


def test_a_vector_may_be_one_row_in_a_file() -> None:
    spec = read_config(QWEN2_MOE)
    own = {f"qwen2moe.{key}": value for key, value in (METADATA | QWEN2_KEYS).items()}
    header = {"general.architecture": "qwen2moe", **own}
    tensors = {name: Info(shape) for name, shape in wanted_tensors(spec).items()}
    name = "blk.1.ffn_gate_inp_shexp.weight"
    for right in ((64,), (1, 64), (1, 1, 64)):
        assert replace(read_gguf(header, tensors | {name: Info(right)}).spec, kinds={}) == spec
    for wrong in ((2, 64), (64, 1), (1, 64, 1), (63,)):
        with pytest.raises(ModelFileError, match=f"{name} has shape"):
            read_gguf(header, tensors | {name: Info(wrong)})


def test_who_chooses_experts_and_with_which_weights() -> None:
    def experts(config: dict[str, Any]) -> ExpertsSpec:
        (one,) = {layer.feed_forward for layer in read_config(config).layers}
        assert isinstance(one, ExpertsSpec)
        return one

    plain = ExpertsSpec(6, 2, 96)
    assert experts(MIXTRAL) == replace(plain, renormalize=True)
    assert experts(OLMOE) == plain
    assert experts(OLMOE | {"norm_topk_prob": True}) == replace(plain, renormalize=True)
    shared = ExpertsSpec(6, 2, 48, shared_intermediate=32, shared_gate=True)
    assert experts(QWEN2_MOE) == shared
    of_chosen = replace(plain, router="top_then_softmax")
    assert experts(GRANITE) == of_chosen
    assert experts(SHARED) == replace(of_chosen, shared_intermediate=32)
    assert experts(GPT_OSS) == replace(of_chosen, activation="clamped_swiglu", bias=True)


def test_windows_of_gpt_oss() -> None:
    def windows(config: dict[str, Any]) -> list[int | None]:
        return [one.window for one in read_config(config).attention_layers.values()]

    assert windows(GPT_OSS) == [128, None, 128]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(GPT_OSS | {"layer_types": kinds}) == [None, 128, None]
    assert windows(MIXTRAL | {"sliding_window": 40}) == [40] * 3


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (OLMOE | {"clip_qkv": 8.0}, UnsupportedModel, r"clip_qkv is 8\.0; supported: none$"),
        (OLMOE | {"attention_bias": True}, UnsupportedModel, "attention_bias is True"),
        (OLMOE | {"num_experts": None}, ModelFileError, "num_experts is None"),
        (MIXTRAL | {"num_local_experts": 1}, ModelFileError, "2 experts a token, of 1"),
        (GPT_OSS | {"swiglu_limit": 5.0}, UnsupportedModel, r"swiglu_limit is 5\.0; supported: 7"),
        (GPT_OSS | {"swiglu_alpha": 1.0}, UnsupportedModel, r"swiglu_alpha is 1\.0"),
        (GRANITE | {"logits_scaling": 0}, ModelFileError, "logits_scaling is 0"),
        (SHARED | {"shared_intermediate_size": -1}, ModelFileError, "shared_intermediate_size is"),
    ],
)
def test_refused_in_one_line(config: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        read_config(config)
    assert "\n" not in str(refused.value)
