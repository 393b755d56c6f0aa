"""Names and configs of every architecture, and experts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import quiet, read_shards, tiny_gguf
from random_folders import CONFIGS, write_random
from safetensors.numpy import save_file

from mlc_llm.conversion import tokenizer_files
from mlc_llm.conversion.config_of_gguf import config_of
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import MLCError, UnsupportedModel
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.model_files.mlc_names import HEADED, mlc_names
from mlc_llm.model_files.row_pieces import Rows, pieces
from mlc_llm.models.registry import ROWS, read_config
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.group_schemes import SCHEMES, dequantize_groups, quantize_groups
from mlc_llm.tokenizers import Tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e4, "tie_word_embeddings": False,
    "sliding_window": 32, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_intermediate_size": 32, "attention_multiplier": 0.125,
    "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 4.0,
    "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0,
}  # fmt: skip
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
LFM2 = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "norm_eps": 1e-5}
LFM2 |= {"block_auto_adjust_ff_dim": False}
OWN = {"gemma2": GEMMA, "gemma3": GEMMA, "lfm2": LFM2}
NO_NAMES = ("gpt_oss",)
WITH_CONFIG = (
    "gemma2", "gemma3_text", "granite", "llama", "mistral", "mixtral", "olmo2", "olmo3", "olmoe",
    "qwen2", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
)  # fmt: skip
"""Those whose GGUF files become folders of MLC LLM. Others may be refused."""
TYPES = [row.model_type for row in ROWS]


def spec_of(model_type: str) -> ModelSpec:
    row = next(row for row in ROWS if row.model_type == model_type)
    try:
        return read_config({**SIZES, **OWN.get(row.gguf, {}), "architectures": [row.config]})
    except MLCError as error:
        if model_type in WITH_CONFIG:
            raise
        pytest.skip(f"it needs fields of its own: {error}")


@pytest.mark.parametrize("model_type", TYPES)
def test_every_tensor_has_a_name(model_type: str) -> None:
    spec = spec_of(model_type)
    wanted = wanted_tensors(spec)
    if model_type in NO_NAMES:
        with pytest.raises(UnsupportedModel, match="its own order of weights"):
            mlc_names(spec.architecture, wanted)
        return
    names = mlc_names(spec.architecture, wanted)
    assert sorted(one for parts in names.values() for one in parts) == sorted(wanted)
    for parts in names.values():  # what is joined has the same columns
        shapes = [wanted[one] for one in parts]
        assert len({len(one) for one in shapes}) == 1
        assert len(shapes[0]) == 1 or len({one[-1] for one in shapes}) == 1
    assert not any("{" in name for name in names)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_config_says_all_or_is_refused(model_type: str) -> None:
    spec = spec_of(model_type)
    try:
        config = config_of(spec, {})
    except UnsupportedModel as error:
        assert model_type not in WITH_CONFIG
        assert "cannot be written as a config.json" in str(error)
        return
    assert read_config(json.loads(json.dumps(config))) == spec


def test_experts_are_joined_and_found_again(tmp_path: Path) -> None:
    """Qwen3 MoE: one parameter has the gate and the up matrices of all experts."""
    folder = tmp_path / "folder"
    folder.mkdir()
    config = {**SIZES, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    config |= {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(s).astype(np.float32) for name, s in sizes().items()}
    save_file(weights, str(folder / "model.safetensors"))
    write_tokenizer(folder)
    convert_weight(HuggingFaceModel.open(folder), "q4f16_1", tmp_path / "out", quiet)
    shards, mlp = read_shards(tmp_path / "out"), "model.layers.0.mlp"
    assert shards[f"{mlp}.moe_gate_up_proj.q_weight"].shape == (4, 64, 8)
    assert shards[f"{mlp}.moe_down_proj.q_scale"].shape == (4, 64, 1)
    assert shards[f"{mlp}.gate.weight"].dtype == np.float16
    model = MLCModel.open(tmp_path / "out")
    for name, of in (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj")):
        stack = model.tensors[f"blk.0.ffn_{name}_exps.weight"]
        for expert in range(4):
            tensor = stack.matrix(expert)
            weight = weights[f"{mlp}.experts.{expert}.{of}.weight"]
            expected = dequantize_groups(quantize_groups(SCHEMES["q4f16_1"], weight))
            assert np.array_equal(dequantize(tensor.kind, tensor.data, tensor.shape), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_any_class_has_the_same_numbers(tmp_path: Path, name: str) -> None:
    model = HuggingFaceModel.open(write_random(tmp_path / "folder", name))
    convert_weight(model, "q0f32", tmp_path / "out", quiet)
    made = MLCModel.open(tmp_path / "out")
    found, expected = numbers_of(made), numbers_of(model)
    if made.plan().spec.architecture in HEADED:  # there the head is a parameter of its own
        expected["head, part 0"] = expected["embedding, part 0"]
        assert replace(made.plan().spec, tied_head=True, kinds=model.plan().spec.kinds) == (
            model.plan().spec
        )
    else:
        assert made.plan().spec == model.plan().spec
    assert found.keys() == expected.keys()
    for key, rows in expected.items():
        assert np.array_equal(found[key], rows), key


def numbers_of(model: ModelFiles) -> dict[str, np.ndarray]:
    """Of each parameter, in the order of the kernels."""
    plan = model.plan()
    sources = plan.matrices | {name: (one,) for name, one in plan.vectors.items()}
    return {
        f"{name}, part {i}": np.concatenate([*pieces(Rows(model.tensors[one.tensor], one))])
        for name, parts in sources.items()
        for i, one in enumerate(parts)
    }


def test_queries_and_gates_in_groups(tmp_path: Path) -> None:
    model = HuggingFaceModel.open(write_random(tmp_path / "folder", "Qwen3_5ForCausalLM"))
    convert_weight(model, "q4f16_1", tmp_path / "out", quiet)
    made, name = MLCModel.open(tmp_path / "out"), "blk.3.attn_q.weight"
    before, after = model.tensors[name], made.tensors[name]
    assert before.shape == after.shape == (2 * 4 * 32, 64)
    weight = dequantize(before.kind, before.data, before.shape)
    expected = dequantize_groups(quantize_groups(SCHEMES["q4f16_1"], weight))
    assert np.array_equal(dequantize(after.kind, after.data, after.shape), expected)


def sizes() -> dict[str, tuple[int, ...]]:
    layer, attention = "model.layers.0", "model.layers.0.self_attn"
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (300, 64), "lm_head.weight": (300, 64),
        "model.norm.weight": (64,), f"{layer}.input_layernorm.weight": (64,),
        f"{layer}.post_attention_layernorm.weight": (64,), f"{layer}.mlp.gate.weight": (4, 64),
        f"{attention}.q_proj.weight": (64, 64), f"{attention}.k_proj.weight": (32, 64),
        f"{attention}.v_proj.weight": (32, 64), f"{attention}.o_proj.weight": (64, 64),
        f"{attention}.q_norm.weight": (16,), f"{attention}.k_norm.weight": (16,),
    }  # fmt: skip
    for expert in range(4):
        start = f"{layer}.mlp.experts.{expert}"
        found |= {f"{start}.{one}_proj.weight": (32, 64) for one in ("gate", "up")}
        found[f"{start}.down_proj.weight"] = (64, 32)
    return found


def write_tokenizer(folder: Path) -> None:
    tokenizer_files.write_tokenizer(tiny_gguf(folder.parent / "tiny.gguf"), folder)
    assert Tokenizer(folder).vocab_size == 300
