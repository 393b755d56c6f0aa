"""Qwen3.5: what its headers say. The oracle compares its numbers with Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.registry import architecture_of, read_config, read_gguf
from mlc_llm.models.row_order import row_order
from mlc_llm.models.sources import HeadPart
from mlc_llm.models.weight_plan import plan_weights, wanted_tensors

TEXT: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 0.5,
    "max_position_embeddings": 2**18, "tie_word_embeddings": True, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_num_value_heads": 4, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_interleaved": True, "mrope_section": [2, 1, 1],
    },
}  # fmt: skip
CONFIG = {"architectures": ["Qwen3_5ForCausalLM"], **TEXT}
METADATA: dict[str, Any] = {
    "block_count": 4, "context_length": 2**18, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
    "attention.layer_norm_rms_epsilon": 0.5, "rope.freq_base": 1e7, "rope.dimension_count": 8,
    "rope.dimension_sections": [2, 1, 1, 0], "ssm.conv_kernel": 4, "ssm.state_size": 16,
    "ssm.group_count": 2, "ssm.inner_size": 128, "ssm.time_step_rank": 4,
}  # fmt: skip


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def of_gguf(
    config: dict[str, Any],
    more: dict[str, Tensor] | None = None,
    architecture: str = "qwen35",
    **changes: Any,
) -> Any:
    """The spec of a file whose tensors are those of a `config.json`, and some more."""
    names = wanted_tensors(read_config(config))
    found = {n.replace("ffn_norm", "post_attention_norm"): Tensor(s) for n, s in names.items()}
    own = {f"{architecture}.{key}": value for key, value in (METADATA | changes).items()}
    metadata = {"general.architecture": architecture, **own}
    return replace(read_gguf(metadata, {**found, **(more or {})}).spec, kinds={})


def in_turn(spec: Any) -> Any:
    """As a file has it: the converter puts heads of values in turn."""
    layers = tuple(
        replace(one, mixer=replace(one.mixer, in_turn=True))
        if isinstance(one.mixer, GatedDeltaSpec)
        else one
        for one in spec.layers
    )
    return replace(spec, layers=layers)


def test_every_fourth_layer_has_attention() -> None:
    spec = read_config(CONFIG)
    assert of_gguf(CONFIG) == in_turn(spec)
    mixers = [one.mixer for one in spec.layers]
    assert mixers[:3] == [GatedDeltaSpec(2, 16, 4, 32, 4)] * 3
    attention = mixers[3]
    assert isinstance(attention, AttentionSpec) and attention.gated and attention.qk_norm == "head"
    assert spec.ropes[0].dim == 8 and spec.layers[0].feed_forward == DenseSpec(96)
    assert mixers[0].state_shapes == ((3, 192), (4, 32, 16))
    assert read_config({**CONFIG, "full_attention_interval": 2}).recurrent_layers.keys() == {0, 2}
    kinds = ["full_attention", *["linear_attention"] * 3]
    other = {**CONFIG, "layer_types": kinds}
    flags = [False, True, True, True]
    changed = of_gguf(other, **{"attention.recurrent_layers": flags})
    assert changed == in_turn(read_config(other)) != spec
    images = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": TEXT}
    assert read_config(images) == spec


class Data(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: str
    data: Any


def test_experts_in_place_of_networks() -> None:
    more = {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }  # fmt: skip
    config = {**CONFIG, **more, "architectures": ["Qwen3_5MoeForCausalLM"]}
    network = ExpertsSpec(8, 2, 32, renormalize=True, shared_intermediate=64, shared_gate=True)
    spec = read_config(config)
    expected = read_config(CONFIG).with_feed_forward(network)
    assert spec == replace(expected, architecture="qwen35moe")
    said = {
        "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 64,
    }  # fmt: skip
    assert of_gguf(config, architecture="qwen35moe", **said) == in_turn(spec)
    with pytest.raises(UnsupportedModel, match="norm_topk_prob is False"):
        read_config({**config, "norm_topk_prob": False})
    images = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": TEXT | more}
    assert replace(read_config(images), tied_head=True) == spec


def test_folders_of_models_that_read_images() -> None:
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": TEXT}
    start, zeros = "model.language_model.layers.0.linear_attn.", np.zeros(192 * 4 * 4, np.uint8)
    tensors: Any = {
        "model.visual.patch_embed.proj.weight": Data("", (1,), "F32", zeros[:4]),
        "mtp.fc.weight": Data("", (1,), "F32", zeros[:4]),
        f"{start}conv1d.weight": Data("c", (192, 1, 4), "F32", zeros),
        f"{start}A_log": Data("a", (4,), "F32", zeros[:16]),
    }
    wanted = {"blk.0.ssm_conv1d.weight": (192, 4), "blk.0.ssm_a": (4,)}
    found = named_tensors(wanted, architecture_of(config).names_of(config), tensors)
    assert {name: one.shape for name, one in found.items()} == wanted
    assert found["blk.0.ssm_a"].data.view(np.float32).tolist() == [-1] * 4


def test_the_head_that_drafts_is_left_out() -> None:
    more = {
        "blk.4.nextn.eh_proj.weight": Tensor((64, 128)),
        "blk.4.attn_norm.weight": Tensor((64,)),
    }
    found = of_gguf(CONFIG, more, block_count=5, nextn_predict_layers=1)
    assert found == in_turn(read_config(CONFIG))
    with pytest.raises(ModelFileError, match="nextn_predict_layers is 4"):
        of_gguf(CONFIG, nextn_predict_layers=4)


def test_gates_stand_behind_the_queries_of_a_head() -> None:
    spec = read_config(CONFIG)
    plan = plan_weights(spec, {n: Tensor(s) for n, s in wanted_tensors(spec).items()})
    q, _, _, gate = plan.matrices["layers.3.qkv.q_k_v_gate"]
    assert q.part == HeadPart(4, 0, 2) and gate.part == HeadPart(4, 1, 2)
    assert q.tensor == gate.tensor and q.shape == (256, 64) and q.count == gate.count == 128
    heads = np.arange(256).reshape(4, 2, 32)
    assert (row_order(q, 256) == heads[:, 0].ravel()).all()
    assert (row_order(gate, 256) == heads[:, 1].ravel()).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention_bias", True, "attention_bias is True"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("layer_types", ["mamba"] * 4, "layer_types is 'mamba'"),
        ("linear_conv_kernel_dim", 1, "a convolution over 1 token"),
    ],
)
def test_what_is_not_computed_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_config({**CONFIG, key: value})


def test_sizes_that_contradict_each_other() -> None:
    with pytest.raises(ModelFileError, match="4 heads of values cannot share 3 heads of keys"):
        read_config({**CONFIG, "linear_num_key_heads": 3})
    with pytest.raises(ModelFileError, match="inner_size is 130"):
        of_gguf(CONFIG, **{"ssm.inner_size": 130})
