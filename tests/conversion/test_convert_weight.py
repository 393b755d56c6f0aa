"""`convert_weight`: what is written, against the weights that went in."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conversion_tools import (
    SHAPE,
    convert,
    hugging_face_weights,
    quiet,
    read_shards,
    tiny_gguf,
    write_folder,
)

from mlc_llm.conversion import convert as convert_file
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.conversion.shards import ShardWriter
from mlc_llm.errors import InvalidField, UnsupportedModel, UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.protocol.mlc_chat_config import MLCChatConfig
from mlc_llm.quantization.ggml_quantize import quantize
from mlc_llm.quantization.group_schemes import (
    SCHEMES,
    Stored,
    dequantize_groups,
    quantize_groups,
    read_numbers,
    read_stored,
    rounded,
)
from mlc_llm.quantization.names import FOLDERS, NAMES
from mlc_llm.support.progress import Progress
from mlc_llm.tokenizers import Tokenizer

JOINED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}


@pytest.fixture
def model(tmp_path: Path) -> GGUFModel:
    return tiny_gguf(tmp_path / "model.gguf")


def joined_weights(path: Path) -> dict[str, np.ndarray]:
    """Weights by MLC LLM's names."""
    weights = hugging_face_weights(path)
    for i in range(SHAPE.layers):
        for name, parts in JOINED.items():
            start = f"model.layers.{i}.{name}"
            block = start.rsplit(".", 1)[0]
            found = [weights.pop(f"{block}.{part}.weight") for part in parts]
            weights[f"{start}.weight"] = np.concatenate(found)
    return weights


@pytest.mark.parametrize("name", SCHEMES)
def test_a_folder_holds_the_quantised_weights(model: GGUFModel, name: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    convert(model, name, tmp_path / "out")
    found = read_shards(tmp_path / "out")
    for full, weight in joined_weights(model.path).items():
        stem = full.removesuffix(".weight")
        is_end = stem in ("model.embed_tokens", "lm_head")
        if not scheme.bits or weight.ndim == 1 or (is_end and not scheme.ends):
            expected = rounded(weight, scheme.dtype)
            assert np.array_equal(read_numbers(found.pop(full)), expected), full
            continue
        given = Stored(found.pop(f"{stem}.q_weight"), found.pop(f"{stem}.q_scale"))
        transposed = scheme.transposed and stem != "model.embed_tokens"
        read = read_stored(scheme, given, weight.shape[1], transposed=transposed)
        expected = dequantize_groups(quantize_groups(scheme, weight))
        assert np.array_equal(dequantize_groups(read), expected), full
    assert not found


def test_the_config_of_a_folder(model: GGUFModel, tmp_path: Path) -> None:
    convert(model, "q4f16_1", tmp_path / "out")
    stated = json.loads((tmp_path / "out" / "mlc-chat-config.json").read_text())
    config = MLCChatConfig.parse(stated)
    assert (config.model_type, config.quantization) == ("llama", "q4f16_1")
    assert config.vocab_size == config.active_vocab_size == 300
    assert config.model_config_["hidden_size"] == SHAPE.hidden
    assert config.model_config_["context_window_size"] == SHAPE.context
    assert config.tokenizer_files == ["tokenizer.json", "tokenizer_config.json"]
    assert stated["conv_template"]["name"] == "chatml"


def test_the_tokenizer_of_a_folder_gives_the_same_ids(model: GGUFModel, tmp_path: Path) -> None:
    convert(model, "q0f16", tmp_path / "out")
    ours, theirs = model.tokenizer(), Tokenizer(tmp_path / "out")
    text = "Hello <|im_start|>user\n  ä\u20ac 123!<|im_end|>"
    for special in (False, True):
        ids = ours.encode(text, special=special)
        assert theirs.encode(text, special=special) == ids
        assert theirs.decode(ids) == ours.decode(ids) == text
    assert theirs.bos_token_id == ours.bos_token_id
    assert theirs.eos_token_ids == ours.eos_token_ids
    assert theirs.eos_token_id == ours.eos_token_id
    template = model.chat_template(ours)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert template is not None
    assert config["chat_template"] == template.source


@pytest.mark.parametrize("name", ["q4f16_1", "q3f16_0"])
def test_a_hugging_face_folder_gives_the_same_folder(
    model: GGUFModel, name: str, tmp_path: Path
) -> None:
    convert(model, name, tmp_path / "first")
    stated = json.loads((tmp_path / "first" / "mlc-chat-config.json").read_text())
    config = stated["model_config"]
    folder = HuggingFaceModel.open(write_folder(model.path, tmp_path / "folder", config))
    convert_weight(folder, name, tmp_path / "second", quiet)
    first, second = read_shards(tmp_path / "first"), read_shards(tmp_path / "second")
    assert list(first) == list(second)
    for key, array in first.items():
        assert np.array_equal(array, second[key]), key
    again = json.loads((tmp_path / "second" / "mlc-chat-config.json").read_text())
    assert again == stated


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3"])
def test_other_architectures_have_their_own_names(architecture: str, tmp_path: Path) -> None:
    more = {"post_norms": True, "window": 32} if architecture == "gemma3" else {}
    path = tmp_path / "model.gguf"
    model = tiny_gguf(path, architecture=architecture, head_norms=True, **more)
    convert(model, "q4f16_1", tmp_path / "out")
    names = set(read_shards(tmp_path / "out"))
    if architecture == "qwen3":
        assert "model.layers.1.self_attn.c_attn.q_weight" in names
        assert "model.layers.0.self_attn.q_norm.weight" in names
    else:
        assert "language_model.model.layers.1.self_attn.v_proj.q_scale" in names
        assert "language_model.model.layers.0.pre_feedforward_layernorm.weight" in names
    assert any(name.endswith("model.embed_tokens.q_weight") for name in names)


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q8_0", "bf16", "q6_k"])
def test_a_gguf_file_keeps_all_but_the_types(name: str, tmp_path: Path) -> None:
    kinds = {"": "F32", "attn_v": "Q8_0"}
    wide = {"hidden": 256, "head_dim": 64, "intermediate": 512}
    model = tiny_gguf(tmp_path / "model.gguf", kinds, **wide)
    made = convert(model, name, tmp_path / "new.gguf")
    assert made.path == tmp_path / "new.gguf"
    old, new = model.file, GGUFFile.open(made.path)
    added = {"general.file_type", "general.quantization_version"}
    assert set(new.metadata) - added == set(old.metadata) - added
    for key in set(old.metadata) - added:
        assert new.metadata[key] == old.metadata[key]
        assert new.metadata.type_of(key) == old.metadata.type_of(key)
    assert list(new.tensors) == list(old.tensors)
    for key, tensor in new.tensors.items():
        before = old.tensors[key]
        if len(tensor.shape) == 1 or before.kind == name.upper():
            assert (tensor.kind, tensor.data.tobytes()) == (before.kind, before.data.tobytes())
        elif before.kind == "F32":
            values = before.data.view(np.float32).reshape(before.shape)
            assert tensor.kind == name.upper()
            assert np.array_equal(tensor.data, quantize(name.upper(), values))
    assert GGUFModel.open(made.path).plan().spec.hidden == 256


def test_a_folder_may_be_named_for_a_gguf_file(model: GGUFModel, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made = convert(model, "q8_0", tmp_path / "out")
    assert made.path == tmp_path / "out" / "model-q8_0.gguf"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model-q8_0.gguf"]
    assert 8.5 <= made.bits < 8.6


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


def test_wrong_names_and_sizes_are_named(model: GGUFModel, tmp_path: Path) -> None:
    with pytest.raises(InvalidField) as error:
        convert(model, "q4f16_9", tmp_path / "out")
    assert all(name in str(error.value) for name in NAMES)
    with pytest.raises(UnsupportedModel, match=r"rows of 64 values are not whole q4_k .*q8_0$"):
        convert(model, "q4_k", tmp_path / "out")
    with pytest.raises(InvalidField, match="conv_template = 'x' is not allowed: one of auto, LM"):
        convert_weight(model, "q4f16_1", tmp_path / "out", quiet, template="x")
    assert left(tmp_path) == ["model.gguf"]


def test_nothing_is_written_over(model: GGUFModel, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(UserError, match=r"output folder .*out is not empty"):
        convert(model, "q4f16_1", tmp_path / "out")
    with pytest.raises(UserError, match=r"model.gguf is there already"):
        convert(model, "q8_0", model.path)
    assert left(tmp_path) == ["model.gguf", "out"]


@pytest.mark.parametrize("name", ["q4f16_1", "q8_0"])
def test_a_full_disk_is_named_before_anything_is_written(
    model: GGUFModel, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(UserError, match=r"the disk of .* is too full: .* are needed"):
        convert(model, name, tmp_path / "out")
    assert left(tmp_path) == ["model.gguf"]


def test_an_error_while_writing_leaves_nothing(
    model: GGUFModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ShardWriter, values: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "finish", fail)
    with pytest.raises(OSError, match="No space left"):
        convert(model, "q4f16_1", tmp_path / "out")
    assert left(tmp_path) == ["model.gguf"]


@pytest.mark.parametrize("name", ["q4f16_1", "q8_0"])
def test_an_interrupted_run_leaves_nothing(model: GGUFModel, name: str, tmp_path: Path) -> None:
    class Stop:
        def advance(self, n: float = 1) -> None:
            raise KeyboardInterrupt

    @contextmanager
    def show(label: str, total: float | None) -> Iterator[Progress]:
        yield Stop()

    with pytest.raises(KeyboardInterrupt):
        convert_weight(model, name, tmp_path / "out", show)
    with pytest.raises(KeyboardInterrupt):
        convert_weight(model, "q8_0", tmp_path / "out.gguf", show)
    assert left(tmp_path) == ["model.gguf"]


def test_large_values_are_refused_where_float16_cannot_hold_them(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    tensor = model.file.tensors["output_norm.weight"]
    data = bytearray(model.path.read_bytes())
    place = data.find(tensor.data.tobytes())
    data[place : place + 4] = np.float32(1e6).tobytes()
    changed = tmp_path / "large.gguf"
    changed.write_bytes(data)
    with pytest.raises(UserError, match=r"output_norm.weight has values that float16 cannot hold"):
        convert(GGUFModel.open(changed), "q4f16_1", tmp_path / "out")
    convert(GGUFModel.open(changed), "q4bf16_1", tmp_path / "out")


def test_every_name_has_a_place(model: GGUFModel) -> None:
    assert set(NAMES) == {*FOLDERS, *(kind.lower() for kind in convert_file.FILE_TYPES)}
