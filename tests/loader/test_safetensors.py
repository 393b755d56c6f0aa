"""Hugging Face folders: what is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.loader.huggingface import INDEX, HuggingFaceFolder
from mlc_llm.loader.safetensors_file import SafetensorsFile

RNG = np.random.default_rng(1)
WEIGHTS = {
    "a": RNG.standard_normal((3, 8)).astype(np.float32),
    "b": RNG.standard_normal((5,)).astype(np.float16),
    "c": RNG.integers(-9, 9, (2, 2), dtype=np.int32),
}


def raw_file(path: Path, header: str | bytes, data: bytes = b"") -> Path:
    """A file with this very header."""
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def folder(path: Path, shards: Mapping[str, Mapping[str, np.ndarray]]) -> Path:
    """A model folder with an index where there is more than one file."""
    (path / "config.json").write_text('{"model_type": "llama"}')
    for name, tensors in shards.items():
        save_file(dict(tensors), path / name)
    if len(shards) > 1:
        places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (path / INDEX).write_text(json.dumps({"weight_map": places}))
    return path


def test_tensors_are_the_file_s_own_bytes(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors", metadata={"format": "np"})
    file = SafetensorsFile.open(tmp_path / "model.safetensors")
    assert set(file.tensors) == set(WEIGHTS)
    for name, values in WEIGHTS.items():
        found = file.tensors[name]
        assert found.shape == values.shape and found.data.tobytes() == values.tobytes()
        assert not found.data.flags.writeable
    assert [file.tensors[name].kind for name in "abc"] == ["F32", "F16", "I32"]


def test_one_file_and_shards_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    whole = HuggingFaceFolder.open(folder(tmp_path / "one", {"model.safetensors": WEIGHTS}))
    parts = {
        "model-00001-of-00002.safetensors": {"a": WEIGHTS["a"]},
        "model-00002-of-00002.safetensors": {name: WEIGHTS[name] for name in "bc"},
    }
    split = HuggingFaceFolder.open(folder(tmp_path / "two", parts))
    assert whole.config == split.config == {"model_type": "llama"}
    assert whole.tensors.keys() == split.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert tensor.data.tobytes() == split.tensors[name].data.tobytes()
    assert [path.name for path, _ in split.opened] == ["config.json", *sorted(parts)]


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ("", b"", "header"),
        ("{", b"", "sound safetensors"),
        ('{"a": 1}', b"", "sound safetensors"),
        ('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', bytes(4), "sound"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"", "sound"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', bytes(8), "sound"),
        ('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', bytes(4), "sound"),
        ('{"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 0]}}', b"",
         "sound"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
         '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(4), "stands twice"),
    ],
)  # fmt: skip
def test_broken_files_are_refused(tmp_path: Path, header: str, data: bytes, words: str) -> None:
    path = raw_file(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ModelFileError, match=words) as caught:
        SafetensorsFile.open(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 16, b"garbage that is long enough"])
def test_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        SafetensorsFile.open(path)


def test_a_type_that_no_model_has(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float64)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"tensor 'a' has the type F64; supported are F32"):
        SafetensorsFile.open(tmp_path / "model.safetensors")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        SafetensorsFile.open(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/model.safetensors", "sub/x.safetensors", "x.bin", 3]
)
def test_an_index_names_files_of_the_folder_only(tmp_path: Path, name: object) -> None:
    folder(tmp_path, {"model.safetensors": WEIGHTS})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelFileError, match=r"weight_map\.'a'.*file in this folder"):
        HuggingFaceFolder.open(tmp_path)


SHARDS = {
    "x.safetensors": {"a": WEIGHTS["a"]},
    "y.safetensors": {name: WEIGHTS[name] for name in "bc"},
}


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "y.safetensors", "b": "x.safetensors"}, "'a' is not in y.safetensors"),
        ({"a": "x.safetensors", "b": "y.safetensors"}, "'c' of y.safetensors is not listed"),
        ({"a": "x.safetensors", "d": "y.safetensors"}, "'d' is not in y.safetensors"),
        ({}, "weight_map should be an object"),
        ([], "weight_map should be an object"),
    ],
)
def test_an_index_at_odds_with_its_files(tmp_path: Path, weight_map: object, words: str) -> None:
    folder(tmp_path, SHARDS)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError, match=words):
        HuggingFaceFolder.open(tmp_path)


@pytest.mark.parametrize("are_there", [True, False])
def test_a_whole_file_wins_over_an_older_index(tmp_path: Path, are_there: bool) -> None:
    folder(tmp_path, SHARDS)
    newer = {name: one + 1 for name, one in WEIGHTS.items()}
    folder(tmp_path, {"model.safetensors": newer})
    for name in SHARDS if not are_there else ():
        (tmp_path / name).unlink()
    found = HuggingFaceFolder.open(tmp_path).tensors
    assert found.keys() == newer.keys()
    assert all(found[name].data.tobytes() == one.tobytes() for name, one in newer.items())


def test_an_index_may_list_the_whole_file(tmp_path: Path) -> None:
    shards = {"model.safetensors": SHARDS["x.safetensors"], "more.safetensors": {"b": WEIGHTS["b"]}}
    assert HuggingFaceFolder.open(folder(tmp_path, shards)).tensors.keys() == {"a", "b"}


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    folder(tmp_path, SHARDS)
    (tmp_path / "y.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"y\.safetensors"):
        HuggingFaceFolder.open(tmp_path)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder(tmp_path, SHARDS)
    save_file(WEIGHTS, tmp_path / "y.safetensors")
    with pytest.raises(ModelFileError, match="'a' is in two files"):
        HuggingFaceFolder.open(tmp_path)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedModel, match=r"only pytorch_model.bin, a pickle, which is never"):
        HuggingFaceFolder.open(tmp_path)


def test_several_files_without_an_index(tmp_path: Path) -> None:
    folder(tmp_path, SHARDS)
    (tmp_path / INDEX).unlink()
    with pytest.raises(UnsupportedModel, match=f"2 safetensors files and no {INDEX}"):
        HuggingFaceFolder.open(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000])
def test_a_config_that_is_no_object(tmp_path: Path, text: str) -> None:
    folder(tmp_path, {"model.safetensors": WEIGHTS})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config.json"):
        HuggingFaceFolder.open(tmp_path)


def test_a_config_that_is_too_large_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, {"model.safetensors": WEIGHTS})
    monkeypatch.setattr("mlc_llm.loader.huggingface.MAX_JSON_BYTES", 5)
    with pytest.raises(ModelFileError) as caught:
        HuggingFaceFolder.open(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: larger than 5 bytes"
