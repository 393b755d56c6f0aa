"""GGUF files made of Hugging Face folders. `tests/oracle/test_folder_to_gguf.py` compares them with
those of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import quiet, tiny_gguf, write_folder
from random_folders import CONFIGS, write_random
from safetensors.numpy import load_file, save_file

from mlc_llm.conversion.config_of_gguf import config_of
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.conversion.gguf_fields import CLASSES, rope_config
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.models.registry import ROWS
from mlc_llm.testing.byte_tokenizer import END_OF_TEXT, IM_END, VOCABULARY_SIZE

CLASS_OF = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
GUESSED = ("general.name", "general.file_type", "general.type", "general.quantization_version")


def folder_of(model: GGUFModel, path: Path, **changes: Any) -> Path:
    """The Hugging Face folder of a GGUF file."""
    config = config_of(model.plan().spec, model.tensors) | changes
    return write_folder(model.path, path, config)


@pytest.mark.parametrize("architecture", CLASS_OF)
def test_there_and_back(architecture: str, tmp_path: Path) -> None:
    more = {"architecture": architecture, "head_norms": architecture == "qwen3"}
    model = tiny_gguf(tmp_path / "model.gguf", **more)
    folder = folder_of(model, tmp_path / "folder", architectures=[CLASS_OF[architecture]])
    made = convert_weight(HuggingFaceModel.open(folder), "f32", tmp_path / "new.gguf", quiet)
    assert made.path == tmp_path / "new.gguf"
    old, new = model.file, GGUFFile.open(made.path)
    assert new.metadata["general.name"] == "folder"
    for key in new.metadata:
        if key not in GUESSED and key in old.metadata:
            expected = old.metadata[key]
            assert new.metadata[key] == (
                pytest.approx(expected) if isinstance(expected, float) else expected
            ), key
    assert old.tensors.keys() == new.tensors.keys()
    for name, tensor in old.tensors.items():
        assert np.array_equal(new.tensors[name].data, tensor.data), name
    ours, theirs = model.tokenizer(), GGUFModel.open(made.path).tokenizer()
    text = "Hello <|im_start|>user\n  ä\u20ac 123!<|im_end|>"
    for special in (False, True):
        assert theirs.encode(text, special=special) == ours.encode(text, special=special)
    assert theirs.eos_token_ids == ours.eos_token_ids


def test_a_folder_that_names_its_type_alone(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    path = folder_of(model, tmp_path / "folder", architectures=None)
    made = convert_weight(HuggingFaceModel.open(path), "f32", tmp_path / "new.gguf", quiet)
    assert GGUFModel.open(made.path).plan().spec == model.plan().spec


def test_vectors_of_16_bits_become_float32(tmp_path: Path) -> None:
    """llama.cpp reads no others."""
    model = tiny_gguf(tmp_path / "model.gguf")
    path = folder_of(model, tmp_path / "folder", architectures=["LlamaForCausalLM"])
    weights = load_file(path / "model.safetensors")
    halves = {name: values.astype(np.float16) for name, values in weights.items()}
    save_file(halves, path / "model.safetensors")
    made = convert_weight(HuggingFaceModel.open(path), "q8_0", tmp_path / "out", quiet)
    assert made.path == tmp_path / "out" / "folder-q8_0.gguf"
    kinds = {name: one.kind for name, one in GGUFFile.open(made.path).tensors.items()}
    assert kinds["output_norm.weight"] == "F32" and kinds["blk.0.attn_q.weight"] == "Q8_0"


def refused(model: HuggingFaceModel, folder: Path) -> str:
    with pytest.raises((UnsupportedModel, ModelFileError)) as error:
        convert_weight(model, "q8_0", folder / "new.gguf", quiet)
    assert not (folder / "new.gguf").exists()
    return str(error.value)


def test_what_cannot_be_said_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    path = folder_of(model, tmp_path / "folder", architectures=["LlamaForCausalLM"])
    config = json.loads((path / "config.json").read_text())

    def with_config(**changes: Any) -> HuggingFaceModel:
        (path / "config.json").write_text(json.dumps(config | changes))
        return HuggingFaceModel.open(path)

    windowed = with_config(architectures=["MistralForCausalLM"], sliding_window=32)
    words = "a .gguf file of llama cannot say layers[0].mixer.window = 32; it would be read as None"
    assert words in refused(windowed, tmp_path)
    factors = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    factors |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    seed = with_config(
        architectures=["SeedOssForCausalLM"], attention_bias=False, rope_scaling=factors
    )
    assert "seed_oss cannot say ropes[0].factors = (1.0, " in refused(seed, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("Qwen3_5ForCausalLM", "full_attention", "a gated delta rule"),
        ("Qwen3_5ForCausalLM", "linear_attention", "attention"),
        ("GraniteMoeHybridForCausalLM", "attention", "a state space"),
        ("Lfm2ForCausalLM", "conv", "attention"),
        ("Lfm2ForCausalLM", "full_attention", "a short convolution"),
    ],
)
def test_models_whose_layers_are_of_one_kind(
    tmp_path: Path, name: str, kind: str, words: str
) -> None:
    config = CONFIGS[name] | {"layer_types": [kind] * CONFIGS[name]["num_hidden_layers"]}
    model = HuggingFaceModel.open(write_random(tmp_path / "folder", name, config))
    assert f"a model without a layer of {words} is not written yet" in refused(model, tmp_path)


def test_classes_that_are_not_written_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {row.config for row in ROWS} - CLASSES.keys() == {
        "Idefics3ForConditionalGeneration",
        "Lfm2MoeForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3NextForCausalLM",
        "RWKV7ForCausalLM",
        "SmolVLMForConditionalGeneration",
    }
    model = tiny_gguf(tmp_path / "model.gguf")
    path = folder_of(model, tmp_path / "folder", architectures=["LlamaForCausalLM"])
    monkeypatch.delitem(CLASSES, "LlamaForCausalLM")
    words = "a .gguf file of LlamaForCausalLM is not written yet; of these it is: Arcee"
    assert words in refused(HuggingFaceModel.open(path), tmp_path)


def test_tokenizers_that_have_no_name_in_gguf_are_refused(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    path = folder_of(model, tmp_path / "folder", architectures=["LlamaForCausalLM"])
    folder, file = HuggingFaceModel.open(path), path / "tokenizer.json"
    whole = json.loads(file.read_text())
    for changes, words in (
        ({"pre_tokenizer": {"type": "Whitespace"}}, "no name in GGUF says how its pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Nothing"}}, "tokenizer.json: pre_tokenizer: "),
        ({"normalizer": {"type": "Lowercase"}}, "no name in GGUF says how its pre_tokenizer"),
        ({"model": {**whole["model"], "byte_fallback": True}}, "add tokenizer.model"),
        ({"model": {**whole["model"], "vocab": {"a": 9000}}}, "ids up to 9000, the embedding has"),
    ):
        file.write_text(json.dumps(whole | changes))
        assert words in refused(folder, tmp_path), changes
    file.unlink()
    assert "is made of tokenizer.json or tokenizer.model" in refused(folder, tmp_path)


def with_ends(model: GGUFModel, path: Path, config: object, generation: object) -> Path:
    """A folder of a Llama whose files state these end ids."""
    changes: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "eos_token_id": config}
    folder = folder_of(model, path, **changes)
    if generation is not None:
        stated = json.dumps({"eos_token_id": generation})
        (folder / "generation_config.json").write_text(stated)
    return folder


END_KEYS = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
FIM, TOOL = IM_END + 1, IM_END + 2
"""Control tokens whose texts end nothing by themselves."""


@pytest.mark.parametrize(
    ("config", "generation", "keys"),
    [
        (None, None, [IM_END, None, None]),
        (IM_END, IM_END, [IM_END, None, None]),
        (None, [IM_END, FIM], [IM_END, FIM, None]),
        ([IM_END, TOOL], None, [IM_END, TOOL, None]),
        ([FIM, IM_END, [TOOL]], [TOOL, 100_000, -1, {}], [IM_END, FIM, TOOL]),
        (None, [END_OF_TEXT, IM_END], [IM_END, END_OF_TEXT, None]),
        # A text that readers know needs no key.
        (None, [END_OF_TEXT, IM_END, FIM, TOOL], [IM_END, FIM, TOOL]),
    ],
)
def test_end_tokens_are_those_of_the_folder(
    config: object, generation: object, keys: list[int | None], tmp_path: Path
) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    folder = with_ends(model, tmp_path / "folder", config, generation)
    opened = HuggingFaceModel.open(folder)
    made = convert_weight(opened, "f32", tmp_path / "new.gguf", quiet)
    assert [GGUFFile.open(made.path).metadata.get(key) for key in END_KEYS] == keys
    stated = opened.tokenizer().eos_token_ids | opened.stop_token_ids
    inside = {i for i in stated if 0 <= i < VOCABULARY_SIZE}
    assert GGUFModel.open(made.path).tokenizer().eos_token_ids == inside


def test_defaults_of_sampling_are_those_of_the_folder(tmp_path: Path) -> None:
    """Also in a folder that is made of the file."""
    model = tiny_gguf(tmp_path / "model.gguf")
    folder = with_ends(model, tmp_path / "folder", None, None)
    stated = {"temperature": 1, "top_k": 20, "top_p": "x", "repetition_penalty": 1.05, "n": 2}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    made = convert_weight(HuggingFaceModel.open(folder), "f32", tmp_path / "new.gguf", quiet)
    new = GGUFModel.open(made.path)
    keys = {key: value for key, value in new.file.metadata.items() if "sampling" in key}
    assert keys == {
        "general.sampling.temp": 1.0, "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": np.float32(1.05),
    }  # fmt: skip
    convert_weight(new, "q4f16_1", tmp_path / "out", quiet)
    chat = json.loads((tmp_path / "out" / "mlc-chat-config.json").read_text())
    assert (chat["temperature"], chat["repetition_penalty"]) == (1.0, 1.05)
    (folder / "generation_config.json").write_text('{"temperature": 0.7, "do_sample": false}')
    convert_weight(HuggingFaceModel.open(folder), "q4f16_1", tmp_path / "greedy", quiet)
    chat = json.loads((tmp_path / "greedy" / "mlc-chat-config.json").read_text())
    assert chat["temperature"] == 0.0


@pytest.mark.parametrize("in_generation", [False, True])
def test_the_first_of_a_list_ends_answers_where_no_token_is_named(
    in_generation: bool, tmp_path: Path
) -> None:
    model, ends = tiny_gguf(tmp_path / "model.gguf"), [TOOL, 65]
    config, generation = (None, ends) if in_generation else (ends, None)
    folder = with_ends(model, tmp_path / "folder", config, generation)
    names = json.loads((folder / "tokenizer_config.json").read_text())
    del names["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    made = convert_weight(HuggingFaceModel.open(folder), "f32", tmp_path / "new.gguf", quiet)
    found = [GGUFFile.open(made.path).metadata.get(key) for key in END_KEYS]
    first, second = sorted(ends) if in_generation else ends
    assert found == [first, second, None]


def test_more_end_tokens_than_a_file_can_name_are_refused(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    folder = with_ends(model, tmp_path / "folder", None, [IM_END, 65, FIM, TOOL])
    words = refused(HuggingFaceModel.open(folder), tmp_path)
    assert "answers end with '<|im_end|>', 'A', '<|fim|>', '<|tool|>'; a .gguf file names" in words


def test_rotary_fields_are_merged_as_readers_merge_them() -> None:
    yarn: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0}
    first = {"original_max_position_embeddings": 64}
    assert rope_config({"rope_parameters": {"rope_type": "default"}, "rope_scaling": yarn}) == yarn
    assert rope_config({"rope_parameters": yarn, "rope_scaling": None}) == yarn
    assert rope_config({"rope_parameters": yarn, **first}) == {**yarn, **first}
    kinds = {"rope_parameters": {"full_attention": yarn, "sliding_attention": {}}}
    assert rope_config({**kinds, "rope_scaling": {"factor": 8.0}}) == {**yarn, "factor": 8.0}
    assert rope_config(first) == {}
