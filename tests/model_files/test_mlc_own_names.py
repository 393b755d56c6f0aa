"""Folders of MLC LLM whose parameters it calls otherwise than Transformers, or joins in its own
way. What is expected is what its loaders say (mlc_llm/model/*/*_loader.py), and the fields that its
configs have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conversion_tools import quiet, read_shards
from random_folders import USUAL, write_random
from safetensors.numpy import load_file

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.model_files.row_pieces import Rows, pieces
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan

Floats = npt.NDArray[np.float32]
Weights = dict[str, Floats]
LAYERS = {**USUAL, "num_hidden_layers": 2}
GPT2 = {
    "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512, "layer_norm_epsilon": 1e-5,
    "vocab_size": USUAL["vocab_size"], "activation_function": "gelu_new",
}  # fmt: skip
NEOX = LAYERS | {
    "num_key_value_heads": 4, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.5,
    "rotary_emb_base": 12_345.0, "use_parallel_residual": True,
}  # fmt: skip
STARCODER2 = LAYERS | {
    "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": True,
    "tie_word_embeddings": True, "rope_theta": 12_345.0,
}  # fmt: skip
PHI3 = LAYERS | {"partial_rotary_factor": 0.5, "rope_theta": 12_345.0}
CONTEXT = {"context_window_size": 512, "prefill_chunk_size": 512, "tensor_parallel_shards": 1}
BASE = {"position_embedding_base": 12_345.0}


def phi3(weights: Weights) -> Weights:
    changes = (
        ("model.embed_tokens", "transformer.embd"), ("model.layers", "transformer.h"),
        ("model.norm", "transformer.norm"), ("input_layernorm", "ln"),
        ("self_attn.o_proj", "mixer.out_proj"), ("self_attn.qkv_proj", "mixer.qkv_proj"),
    )  # fmt: skip
    found = {}
    for name, values in weights.items():
        own = name
        for old, new in changes:
            own = own.replace(old, new)
        found[own] = values
    return found


def starcoder2(weights: Weights) -> Weights:
    found = dict(weights)
    for layer in range(2):
        part = f"model.layers.{layer}.self_attn"
        for end in ("weight", "bias"):
            joined = [found.pop(f"{part}.{one}_proj.{end}") for one in "qkv"]
            found[f"{part}.wqkv_pack.{end}"] = np.concatenate(joined)
    return {**found, "lm_head.weight": weights["model.embed_tokens.weight"]}


def gpt2(weights: Weights) -> Weights:
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_proj.weight", "mlp.c_fc.weight")
    found = {name: v.T if name.endswith(turned) else v for name, v in weights.items()}
    return {**found, "lm_head.weight": weights["transformer.wte.weight"]}


def gpt_neox(weights: Weights) -> Weights:
    """From [heads, (q, k, v), numbers] to [(q, k, v), heads, numbers]."""
    return {
        name: np.concatenate(np.split(v.reshape(4, 48, -1), 3, axis=1)).reshape(v.shape)
        if "query_key_value" in name
        else v
        for name, v in weights.items()
    }


Case = tuple[str, Mapping[str, Any], tuple[str, ...], Mapping[str, Any], Callable[..., Weights]]
CASES: dict[str, Case] = {
    "phi3": (
        "Phi3ForCausalLM", PHI3,
        ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "head_dim",
         "intermediate_size", "rms_norm_eps", "num_key_value_heads", "max_position_embeddings",
         "tie_word_embeddings", "partial_rotary_factor"),
        BASE | {"rope_scaling": None, "original_max_position_embeddings": 0}, phi3,
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM", STARCODER2,
        ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim",
         "num_key_value_heads", "hidden_act", "norm_epsilon", "intermediate_size", "rope_theta",
         "use_bias"),
        {"use_cache": True, "bos_token_id": 0, "eos_token_id": 0}, starcoder2,
    ),
    "gpt2": (
        "GPT2LMHeadModel", GPT2, ("vocab_size", "n_embd", "n_layer", "n_head",
        "layer_norm_epsilon"),
        {"n_inner": 256, "scale_attn_by_inverse_layer_idx": False, "head_dim": 16}, gpt2,
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM", NEOX,
        ("use_parallel_residual", "hidden_size", "intermediate_size", "num_attention_heads",
         "num_hidden_layers", "layer_norm_eps", "vocab_size", "rotary_pct", "head_dim"),
        BASE | {"ffn_out_dtype": "float32"}, gpt_neox,
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Of Hugging Face."""
    name, config, *_ = CASES[request.param]
    return write_random(tmp_path / "folder", name, config)


def plain(plan: WeightPlan) -> ModelSpec:
    """Where the head is a tensor of its own, as MLC LLM has it."""
    return replace(plan.spec, kinds={}, tied_head=False)


def weights_of(model: MLCModel | HuggingFaceModel) -> Weights:
    sources = [s for found in model.plan().matrices.values() for s in found]
    sources += model.plan().vectors.values()
    return {s.tensor: np.concatenate([*pieces(Rows(model.tensors[s.tensor], s))]) for s in sources}


@pytest.mark.parametrize(("folder", "case"), [(one, one) for one in CASES], indirect=["folder"])
def test_parameters_are_called_as_mlc_llm_calls_them(
    folder: Path, case: str, tmp_path: Path
) -> None:
    _, _, fields, more, renamed = CASES[case]
    convert_weight(HuggingFaceModel.open(folder), "q0f32", tmp_path / "out", quiet)
    expected = renamed(load_file(folder / "model.safetensors"))
    written = read_shards(tmp_path / "out")
    assert written.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(written[name], values), name

    path = tmp_path / "out" / "mlc-chat-config.json"
    chat = json.loads(path.read_text())
    stated = json.loads((folder / "config.json").read_text())
    chat["model_config"] = {name: stated[name] for name in fields} | CONTEXT | more
    chat["model_type"] = case
    path.write_text(json.dumps(chat))
    before, after = HuggingFaceModel.open(folder), MLCModel.open(tmp_path / "out")
    assert plain(after.plan()) == plain(before.plan())
    found = weights_of(after)
    for name, values in weights_of(before).items():
        assert np.array_equal(found[name], values), name


@pytest.mark.parametrize("folder", ["phi3", "starcoder2"], indirect=True)
@pytest.mark.parametrize("scheme", ["q0f32", "q4f16_1"])
def test_names_that_were_written_once_are_read(
    folder: Path, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HuggingFaceModel.open(folder)
    convert_weight(model, scheme, tmp_path / "new", quiet)
    with monkeypatch.context() as changed:
        changed.setattr("mlc_llm.model_files.mlc_names._WAYS", {})
        changed.setattr("mlc_llm.conversion.mlc_params.HEADED", ())
        convert_weight(model, scheme, tmp_path / "old", quiet)
    new, old = MLCModel.open(tmp_path / "new"), MLCModel.open(tmp_path / "old")
    assert not new.shards.params.keys() & {"model.layers.0.self_attn.qkv_proj.q_weight"}
    assert new.shards.params.keys() != old.shards.params.keys()
    again, found = weights_of(new), weights_of(old)
    for name, values in found.items():
        assert np.array_equal(again[name], values), name


@pytest.mark.parametrize("folder", ["gpt2", "starcoder2"], indirect=True)
@pytest.mark.parametrize("scheme", ["q4f16_0", "q4f16_1"])
def test_the_head_has_the_values_of_the_embedding(
    folder: Path, scheme: str, tmp_path: Path
) -> None:
    convert_weight(HuggingFaceModel.open(folder), scheme, tmp_path / "out", quiet)
    found = weights_of(MLCModel.open(tmp_path / "out"))
    assert np.array_equal(found["output.weight"], found["token_embd.weight"])
