"""Hugging Face folders of encoders: what they say, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import quiet
from encoder_folders import FIRST_NOMIC, FORMS, encoder_config, folder_of
from tiny_encoders import CONTEXT, HIDDEN, TinyEncoder

from mlc_llm.conversion.config_of_gguf import config_of
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.models.registry import ENCODERS, read_config, read_gguf

CASES = [
    *((form, TinyEncoder(architecture)) for form, architecture in FORMS.items()),
    ("bert", TinyEncoder(labels=1)),
    ("roberta", TinyEncoder(labels=2, types=1)),
    ("nomic", TinyEncoder("nomic-bert", labels=2)),
]


def bytes_of(one: Tensor) -> bytes:
    return one.data.tobytes()


@pytest.mark.parametrize(("form", "encoder"), CASES, ids=str)
def test_a_folder_is_the_gguf_file(tmp_path: Path, form: str, encoder: TinyEncoder) -> None:
    """The same plan, so the same code, and the same numbers."""
    file = GGUFFile.open(encoder.write(tmp_path / "tiny.gguf"))
    exact = read_gguf(file.metadata, file.tensors)
    found = HuggingFaceModel.open(folder_of(encoder, form).write(tmp_path / "folder"))
    assert replace(found.plan().spec, kinds={}) == replace(exact.spec, kinds={})
    for name, one in found.tensors.items():
        if name in file.tensors:
            assert bytes_of(one) == bytes_of(file.tensors[name]), name
    fused = {name for name in file.tensors if "attn_qkv" in name}
    assert file.tensors.keys() - found.tensors.keys() == fused
    for name in fused:
        parts = [found.tensors[name.replace("qkv", part)] for part in "qkv"]
        assert b"".join(map(bytes_of, parts)) == bytes_of(file.tensors[name])


def test_heads_over_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    folder = folder_of(TinyEncoder(labels=1), "bert")
    folder.config["architectures"] = ["BertForMaskedLM"]
    one = folder.tensors["classifier.weight"]
    rest = {key: one for key, one in folder.tensors.items() if "classifier" not in key}
    head = "cls.predictions.transform.dense.weight"
    folder.tensors = {**rest, head: one, "bert.embeddings.position_ids": one}
    found = HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    assert found.plan().spec.encoder is not None and not found.plan().spec.encoder.labels
    assert "cls.weight" not in found.tensors


def test_more_heads_than_elements_are_refused(tmp_path: Path) -> None:
    folder = folder_of(TinyEncoder(), "bert")
    folder.config["num_attention_heads"] = 65
    with pytest.raises(ModelFileError, match="65 attention heads of 64 elements together; at"):
        HuggingFaceModel.open(folder.write(tmp_path / "folder"))


def test_norms_of_the_first_folders(tmp_path: Path) -> None:
    folder = folder_of(TinyEncoder(), "bert")
    folder.tensors = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): one
        for name, one in folder.tensors.items()
    }
    found = HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    exact = TinyEncoder().weights["token_embd_norm.bias"]
    assert bytes_of(found.tensors["token_embd_norm.bias"]) == exact.tobytes()


@pytest.mark.parametrize(
    ("name", "error", "word"),
    [
        ("encoder.layer.1.output.dense.bias", ModelFileError, "there is no tensor"),
        ("embeddings.position_embeddings.weight", ModelFileError, r"expected \(130, 64\)"),
        ("encoder.layer.0.adapter.weight", UnsupportedModel, "is not part of the architecture"),
    ],
)
def test_other_tensors_are_refused_by_name(
    tmp_path: Path, name: str, error: type[MLCError], word: str
) -> None:
    folder = folder_of(TinyEncoder(), "roberta")
    short = folder.tensors["embeddings.token_type_embeddings.weight"]
    if "bias" in name:
        del folder.tensors[name]
    else:
        folder.tensors[name] = short
    with pytest.raises(error, match=f"{name}.*{word}|{word}.*{name}"):
        HuggingFaceModel.open(folder.write(tmp_path / "folder"))


def test_they_are_written_in_no_other_format(tmp_path: Path) -> None:
    folder = folder_of(TinyEncoder(), "roberta").write(tmp_path / "folder")
    made = {"q4f16_1": "folders of MLC LLM have no encoders such as bert"}
    made["q8_0"] = "a .gguf file of XLMRobertaModel is not written yet"
    for scheme, word in made.items():
        with pytest.raises(UnsupportedModel, match=word):
            convert_weight(HuggingFaceModel.open(folder), scheme, tmp_path / scheme, quiet)
    model = GGUFModel.open(TinyEncoder().write(tmp_path / "tiny.gguf"))
    with pytest.raises(UnsupportedModel, match="a bert model is an encoder, which cannot be"):
        config_of(model.plan().spec, model.tensors)


def test_configs() -> None:
    plain = read_config(encoder_config("bert")).encoder
    assert plain is not None and (plain.token_types, plain.labels) == (2, 0)
    compares = read_config(encoder_config("roberta", labels=3)).encoder
    assert compares is not None and compares.labels == 3
    assert read_config(encoder_config("roberta")).context_window == CONTEXT
    nomic = read_config({**FIRST_NOMIC, "n_positions": 64})
    assert (nomic.context_window, nomic.ropes[0].theta) == (64, 1000.0)
    windowed = ("gemma_embedding", "modern_bert")  # they have a test of their own
    for row in [one for one in ENCODERS if one.file not in windowed]:
        config = encoder_config({"nomic_bert": "nomic"}.get(row.file, row.file))
        found = read_config({**config, "architectures": None, "model_type": row.model_type})
        assert found.encoder is not None and found.hidden == HIDDEN


@pytest.mark.parametrize(
    ("form", "changed", "word"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("bert", {"architectures": ["DebertaModel"]}, "'DebertaModel' is not supported"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id is 0"),
        ("nomic", {"hidden_act": "gelu"}, "hidden_act"),
        ("first nomic", {"activation_function": "gelu"}, "activation_function"),
        ("first nomic", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        ("first nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers"),
    ],
)
def test_configs_of_other_models_are_refused(form: str, changed: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        read_config({**encoder_config(form), **changed})


@pytest.mark.parametrize("value", [2, 0, -1, 1.5, True])
def test_broken_sizes_are_named(value: object) -> None:
    with pytest.raises(ModelFileError, match="max_position_embeddings"):
        read_config({**encoder_config("roberta"), "max_position_embeddings": value})


def test_a_roberta_skips_the_rows_of_padding(tmp_path: Path) -> None:
    found = HuggingFaceModel.open(folder_of(TinyEncoder(), "roberta").write(tmp_path / "folder"))
    table = found.tensors["position_embd.weight"].data.view(np.float32).reshape(CONTEXT, HIDDEN)
    assert np.array_equal(table, TinyEncoder().weights["position_embd.weight"])
