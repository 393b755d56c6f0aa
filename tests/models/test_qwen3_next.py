"""Qwen3-Next: what its headers say. The oracle compares its numbers with Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlc_llm.errors import UnsupportedModel
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.models import qwen3_next
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.models.row_order import row_order
from mlc_llm.models.weight_plan import WeightPlan, wanted_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64,
    "intermediate_size": 96, "vocab_size": 300, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 0.5,
    "max_position_embeddings": 2**18, "tie_word_embeddings": False, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_num_value_heads": 4, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "rope_theta": 1e7, "partial_rotary_factor": 0.25,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "norm_topk_prob": True,
}  # fmt: skip
METADATA: dict[str, Any] = {
    "block_count": 4, "context_length": 2**18, "embedding_length": 64,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
    "attention.layer_norm_rms_epsilon": 0.5, "rope.freq_base": 1e7, "rope.dimension_count": 8,
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 128,
    "ssm.time_step_rank": 4, "expert_count": 8, "expert_used_count": 2,
    "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64,
}  # fmt: skip


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def plan_of_gguf() -> WeightPlan:
    """Of a file whose tensors are those of the config, a and b in one as converters write them."""
    found = {}
    for name, shape in wanted_tensors(read_config(CONFIG)).items():
        if "ssm_alpha" in name:
            found[name.replace("alpha", "ba")] = Tensor((8, 64))
        elif "ssm_beta" not in name:
            found[name.replace("ffn_norm", "post_attention_norm")] = Tensor(shape)
    own = {f"qwen3next.{key}": value for key, value in METADATA.items()}
    return read_gguf({"general.architecture": "qwen3next", **own}, found)


def test_layers_and_experts() -> None:
    spec = read_config(CONFIG)
    assert replace(plan_of_gguf().spec, kinds={}) == spec
    network = ExpertsSpec(8, 2, 32, renormalize=True, shared_intermediate=64, shared_gate=True)
    assert {one.feed_forward for one in spec.layers} == {network}
    assert spec.layers[0].mixer == GatedDeltaSpec(2, 16, 4, 32, 4)
    assert [*spec.attention_layers] == [3]
    dense = read_config({**CONFIG, "mlp_only_layers": [1]})
    assert dense.layers[1].feed_forward == DenseSpec(96)
    assert dense.layers[1].mixer == spec.layers[1].mixer and dense.layers[2] == spec.layers[2]


def test_numbers_of_heads_in_one_matrix() -> None:
    a, b = plan_of_gguf().matrices["layers.0.delta_in.qkv_z_a_b"][2:]
    assert a.tensor == b.tensor == "blk.0.ssm_ba.weight"
    assert row_order(a, 8).tolist() == [2, 3, 6, 7] and row_order(b, 8).tolist() == [0, 1, 4, 5]


class Floats(NamedTuple):
    name: str
    shape: tuple[int, ...]
    data: Any
    kind: str = "F32"


def test_parts_of_the_fused_matrices_of_a_folder() -> None:
    names = qwen3_next.config_names(CONFIG)
    start, found = "model.layers.0.linear_attn.", {}
    for name, rows in (("in_proj_qkvz", 320), ("in_proj_ba", 8)):
        values = np.repeat(np.arange(rows, dtype=np.float32), 2)
        tensor: Any = Floats(f"{start}{name}.weight", (rows, 2), values.view(np.uint8))
        found[tensor.name] = tensor
    shapes = {"attn_qkv": 192, "attn_gate": 128, "ssm_alpha": 4, "ssm_beta": 4}
    wanted = {f"blk.0.{name}.weight": (rows, 2) for name, rows in shapes.items()}
    views = named_tensors(wanted, names, found)
    read = {n: one.data.view(np.float32)[::2].astype(int).tolist() for n, one in views.items()}
    q, k, v, z = [], [], [], []
    for head in (0, 160):  # 16 rows of queries, 16 of keys, 64 of values, 64 of the gate
        q += range(head, head + 16)
        k += range(head + 16, head + 32)
        v += range(head + 32, head + 96)
        z += range(head + 96, head + 160)
    assert read["blk.0.attn_qkv.weight"] == q + k + v
    assert read["blk.0.attn_gate.weight"] == z
    assert read["blk.0.ssm_beta.weight"] == [0, 1, 4, 5]
    assert read["blk.0.ssm_alpha.weight"] == [2, 3, 6, 7]


@pytest.mark.parametrize(("key", "value"), [("attention_bias", True), ("hidden_act", "gelu")])
def test_what_is_not_computed_is_refused(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=f"{key} is {value!r}"):
        read_config({**CONFIG, key: value})
