"""What `config.json` files of Transformers 4 and 5 say, and what is wrong with others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.registry import ROWS, read_config, read_gguf
from mlc_llm.models.spec import ModelSpec

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
QWEN3 = {
    **SIZES, "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False,
    "sliding_window": None, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_MOE = {
    **SIZES, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3 = {
    **SIZES, "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 20, "sliding_window_pattern": 6, "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
GEMMA3_OF_VERSION_5 = {
    key: value
    for key, value in GEMMA3.items()
    if key not in ("rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern")
} | {
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
LLAMA3_SCALING = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
METADATA = {
    "embedding_length": 64, "block_count": 7, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 32, "feed_forward_length": 96,
    "context_length": 512, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0,
}  # fmt: skip
EXPERTS = {
    "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 48,
}  # fmt: skip
WINDOWS = {
    "attention.sliding_window": 20, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
    "rope.freq_base_swa": 10000.0,
}  # fmt: skip


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    kind: str = "F32"


def tensors_of(name: str, *, tied: bool) -> dict[str, Info]:
    """Those of a model of METADATA's sizes."""
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (64,), "attn_q": (128, 64), "attn_k": (64, 64), "attn_v": (64, 64),
        "attn_output": (64, 128), "ffn_norm": (64,),
    }  # fmt: skip
    if name == "qwen3moe":
        layer |= {
            "ffn_gate_inp": (6, 64), "ffn_gate_exps": (6, 48, 64), "ffn_up_exps": (6, 48, 64),
            "ffn_down_exps": (6, 64, 48),
        }  # fmt: skip
    else:
        layer |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    if name != "llama":
        layer |= {"attn_q_norm": (32,), "attn_k_norm": (32,)}
    if name == "gemma3":
        layer |= {"post_attention_norm": (64,), "post_ffw_norm": (64,)}
    found = {"token_embd.weight": Info((300, 64)), "output_norm.weight": Info((64,))}
    if not tied:
        found["output.weight"] = Info((300, 64))
    for i in range(7):
        found |= {f"blk.{i}.{part}.weight": Info(shape) for part, shape in layer.items()}
    return found


def of_gguf(name: str, more: dict[str, Any], *, tied: bool) -> ModelSpec:
    own = {f"{name}.{key}": value for key, value in (METADATA | more).items()}
    plan = read_gguf({"general.architecture": name, **own}, tensors_of(name, tied=tied))
    return replace(plan.spec, kinds={})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, of_gguf("llama", {}, tied=False)),
        (QWEN3, of_gguf("qwen3", {}, tied=True)),
        (QWEN3_MOE, of_gguf("qwen3moe", EXPERTS, tied=False)),
        (GEMMA3, of_gguf("gemma3", WINDOWS, tied=True)),
        (GEMMA3_OF_VERSION_5, of_gguf("gemma3", WINDOWS, tied=True)),
    ],
    ids=["llama", "qwen3", "qwen3_moe", "gemma3", "gemma3 of version 5"],
)
def test_the_spec_is_that_of_the_gguf_file(config: dict[str, Any], expected: ModelSpec) -> None:
    assert read_config(config) == expected
    (row,) = (one for one in ROWS if one.config == config["architectures"][0])
    assert read_config({**config, "architectures": None, "model_type": row.model_type}) == expected


def test_rotary_scaling() -> None:
    assert read_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4}}).ropes == (
        RopeSpec(500000.0, 32, linear=4.0),
    )
    (rope,) = read_config({**LLAMA, "rope_scaling": LLAMA3_SCALING}).ropes
    assert isinstance(rope.factors, tuple)
    wave = 2 * np.pi * 500000.0 ** (np.arange(0, 32, 2) / 32)
    mean = (8192 / wave - 1) / 3
    between = 1 / ((1 - mean) / 32 + mean)
    expected = np.where(wave < 8192 / 4, 1, np.where(wave > 8192, 32, between))
    assert np.allclose(rope.factors, expected, rtol=1e-12)
    assert len(set(rope.factors)) == 3
    new = {**LLAMA, "rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500000.0}}
    assert read_config({k: v for k, v in new.items() if k != "rope_theta"}).ropes == (rope,)


def test_layers_of_a_mixture_that_have_no_experts() -> None:
    spec = read_config({**QWEN3_MOE, "mlp_only_layers": [0, 4], "decoder_sparse_step": 3})
    with_experts = [isinstance(layer.feed_forward, ExpertsSpec) for layer in spec.layers]
    assert with_experts == [False, False, True, False, False, True, False]


def test_caps_and_biases() -> None:
    assert read_config({**GEMMA3, "final_logit_softcapping": 30.0}).logit_cap == 30.0
    layer = read_config({**LLAMA, "attention_bias": True, "mlp_bias": True}).layers[0]
    assert (layer.mixer.qkv_bias, layer.mixer.output_bias) == (True, True)
    assert layer.feed_forward.bias  # type: ignore[union-attr]


def test_a_cap_of_scores_that_transformers_leaves_out_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"softcapping is 50\.0; supported: none"):
        read_config({**GEMMA3, "attn_logit_softcapping": 50.0})


COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings")  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, 1.5, 2**31, 2**63, math.nan, "2", True, [], {}])
@pytest.mark.parametrize("key", COUNTS)
def test_counts(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=f"^{key} is .*whole number above 0"):
        read_config({**LLAMA, key: value})


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1e-5", True, 10**400])
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_numbers(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=f"^{key} is .*number above 0"):
        read_config({**LLAMA, key: value})


@pytest.mark.parametrize("key", ["hidden_size", "rms_norm_eps", "vocab_size"])
def test_fields_that_must_be_there(key: str) -> None:
    without = {k: v for k, v in LLAMA.items() if k != key}
    for config in (without, {**LLAMA, key: None}):
        with pytest.raises(ModelFileError, match=f"^{key} is None"):
            read_config(config)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({**LLAMA, "num_hidden_layers": 10**6}, ModelFileError, "num_hidden_layers is 1000000"),
        ({**LLAMA, "hidden_act": "relu"}, UnsupportedModel, "hidden_act is 'relu'; .*silu"),
        ({**LLAMA, "hidden_act": None}, UnsupportedModel, "hidden_act is None"),
        ({**LLAMA, "attention_bias": "no"}, ModelFileError, "'no'; true or false"),
        ({**LLAMA, "rope_scaling": "x"}, ModelFileError, "rope_scaling is 'x'; an object"),
        ({**LLAMA, "rope_scaling": {"rope_type": "axial"}}, UnsupportedModel,
         r"rope_scaling\.rope_type is 'axial'; supported: default, dynamic, linear, llama3, yarn"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}}, ModelFileError,
         r"rope_scaling\.factor is None"),
        ({**LLAMA, "rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}}, ModelFileError,
         "rotary theta of 1.0"),
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 2**70}}, ModelFileError,
         r"YaRN factor of 1.18059e\+21; 1e-06 to 1e\+06 was expected"),
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 1e-320}}, ModelFileError,
         "YaRN factor of "),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, ModelFileError,
         r"rope_scaling\.factor is None"),
        ({**LLAMA, "rope_scaling": {**LLAMA3_SCALING, "low_freq_factor": 4}}, ModelFileError,
         r"rope_scaling\.high_freq_factor is 4.0; more than low_freq_factor"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor is 0.5"),
        ({**LLAMA, "num_key_value_heads": 3}, ModelFileError, "layer 0: 4 heads cannot share 3"),
        ({**QWEN3, "use_sliding_window": True}, UnsupportedModel, "use_sliding_window is True"),
        ({**QWEN3_MOE, "num_experts_per_tok": 7}, ModelFileError, "7 experts a token, of 6"),
        ({**QWEN3_MOE, "mlp_only_layers": [-1]}, ModelFileError, r"mlp_only_layers is \[-1\]"),
        ({**QWEN3_MOE, "norm_topk_prob": 1}, ModelFileError, "norm_topk_prob is 1"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, ModelFileError, "a list of 7 texts"),
        ({**GEMMA3, "layer_types": ["x"] * 7}, UnsupportedModel, "layer_types is 'x'"),
        ({**GEMMA3, "layer_types": [[]] * 7}, UnsupportedModel, r"layer_types is \[\]"),
        ({**GEMMA3, "use_bidirectional_attention": True}, UnsupportedModel, "use_bidirectional"),
        ({**LLAMA, "is_causal": False}, UnsupportedModel, "is_causal is False; supported: True"),
        ({**QWEN3, "use_bidirectional_attention": True}, UnsupportedModel, "use_bidirectional"),
        ({}, UnsupportedModel, "architecture None is not supported; supported: .*llama"),
        ({"architectures": ["T5Model"]}, UnsupportedModel, r"'T5Model'.*Llama\*.*ForCausalLM"),
        ({"architectures": [7]}, UnsupportedModel, "architecture 7"),
        ({"architectures": [], "model_type": []}, UnsupportedModel, r"architecture \[\]"),
    ],
)  # fmt: skip
def test_refused_in_one_line(config: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        read_config(config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_files_whose_tokens_see_later_ones(name: str) -> None:
    assert of_gguf(name, {"attention.causal": True}, tied=True)
    with pytest.raises(UnsupportedModel, match=rf"{name}\.attention\.causal is False"):
        of_gguf(name, {"attention.causal": False}, tied=True)


@pytest.mark.parametrize("shape", [(5, 48, 64), (6, 48 * 64), (6, 64, 48), (48, 64)])
def test_stacks_of_experts_have_three_sizes(shape: tuple[int, ...]) -> None:
    own = {f"qwen3moe.{key}": value for key, value in (METADATA | EXPERTS).items()}
    tensors = tensors_of("qwen3moe", tied=False) | {"blk.3.ffn_up_exps.weight": Info(shape)}
    with pytest.raises(ModelFileError, match=r"blk\.3\.ffn_up_exps\.weight has shape"):
        read_gguf({"general.architecture": "qwen3moe", **own}, tensors)
