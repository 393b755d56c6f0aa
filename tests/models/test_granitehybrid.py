"""Granite 4: what its headers say. The oracle compares its numbers with Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.models.weight_plan import wanted_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "num_hidden_layers": 3,
    "hidden_size": 64, "intermediate_size": 32, "shared_intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
    "max_position_embeddings": 2**20, "rms_norm_eps": 0.5, "tie_word_embeddings": True,
    "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0,
    "num_experts_per_tok": 0, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
    "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2, "attention_multiplier": 0.125,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 8.0,
    "position_embedding_type": "nope", "time_step_limit": [0.0, float("inf")],
}  # fmt: skip
METADATA: dict[str, Any] = {
    "block_count": 3, "context_length": 2**20, "embedding_length": 64, "feed_forward_length": 32,
    "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0], "attention.scale": 0.125,
    "attention.layer_norm_rms_epsilon": 0.5, "embedding_scale": 12.0, "residual_scale": 0.25,
    "logit_scale": 8.0, "expert_shared_feed_forward_length": 96, "rope.scaling.finetuned": False,
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 128,
    "ssm.time_step_rank": 4,
}  # fmt: skip
EXPERTS = {"expert_count": 4, "expert_used_count": 2}


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def of_gguf(config: dict[str, Any], **changes: Any) -> Any:
    """The spec of a file whose tensors are those of a `config.json`."""
    names = wanted_tensors(read_config(config))
    own = {f"granitehybrid.{key}": value for key, value in (METADATA | changes).items()}
    metadata = {"general.architecture": "granitehybrid", **own}
    return replace(read_gguf(metadata, {n: Tensor(s) for n, s in names.items()}).spec, kinds={})


def test_a_dense_one() -> None:
    spec = read_config(CONFIG)
    assert of_gguf(CONFIG) == spec and not spec.ropes
    mixers = [one.mixer for one in spec.layers]
    assert mixers[0] == mixers[2] == Mamba2Spec(4, 32, 16, 2, 4)
    assert isinstance(mixers[1], AttentionSpec) and mixers[1].rope is None
    assert {one.feed_forward for one in spec.layers} == {DenseSpec(96)}
    assert [*spec.recurrent_layers] == [0, 2]
    assert mixers[0].state_shapes == ((3, 192), (4, 32, 16))
    newer = ["linear_attention", "full_attention", "linear_attention"]
    limits = [0.0, {"__float__": "Infinity"}]
    assert read_config({**CONFIG, "layer_types": newer, "time_step_limit": limits}) == spec


def test_one_with_experts() -> None:
    config = {**CONFIG, "num_local_experts": 4, "num_experts_per_tok": 2}
    spec = read_config(config)
    assert of_gguf(config, **EXPERTS) == spec
    network = ExpertsSpec(4, 2, 32, router="top_then_softmax", shared_intermediate=96)
    assert {one.feed_forward for one in spec.layers} == {network}


def test_the_smallest_ones_have_attention_alone_and_rotate() -> None:
    config = {**CONFIG, "position_embedding_type": "rope", "layer_types": ["attention"] * 3}
    spec = read_config({**config, "rope_theta": 5e5})
    assert spec.ropes == (RopeSpec(5e5, 16),)
    assert [one.rope for one in spec.attention_layers.values()] == [0, 0, 0]
    scaling = {"rope_type": "linear", "factor": 2.0}
    assert read_config({**config, "rope_scaling": scaling}).ropes == (RopeSpec(1e4, 16, 2.0),)
    assert read_config({**CONFIG, "position_embedding_type": None}) == read_config(CONFIG)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("position_embedding_type", "learned", "position_embedding_type is 'learned'"),
        ("mamba_conv_bias", False, "mamba_conv_bias is False"),
        ("mamba_proj_bias", True, "mamba_proj_bias is True"),
        ("time_step_limit", [0.0, 0.1], "time_step_limit is"),
        ("layer_types", ["mamba", "rwkv", "attention"], "layer_types is 'rwkv'"),
        ("mamba_d_conv", 1, "a convolution over 1 token"),
    ],
)
def test_what_is_not_computed_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_config({**CONFIG, key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("mamba_n_heads", 7), ("mamba_d_head", 16), ("mamba_n_groups", 3)]
)
def test_sizes_that_contradict_each_other(key: str, value: int) -> None:
    with pytest.raises(ModelFileError, match=r"mamba_n_heads|mamba_d_head|groups evenly"):
        read_config({**CONFIG, key: value})


def test_a_file_whose_sizes_contradict_each_other() -> None:
    for key, value in (("ssm.inner_size", 130), ("attention.head_count_kv", [0, 0, 0])):
        with pytest.raises(ModelFileError, match=key):
            of_gguf(CONFIG, **{key: value})
    with pytest.raises(UnsupportedModel, match="finetuned"):
        of_gguf(CONFIG, **{"rope.scaling.finetuned": True})
