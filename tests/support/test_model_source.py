"""From a model's name to its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc_llm.errors import ModelNotFound
from mlc_llm.support import model_source
from mlc_llm.support.model_source import ModelSource, resolve_model


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_none_is_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("some") / "Model.Q4_1.gguf"
    monkeypatch.setattr(model_source, "packaged_file", lambda wanted: path)
    assert resolve_model(None) == ModelSource(path, "gguf", "Model.Q4_1")


def test_a_file(tmp_path: Path) -> None:
    path = touch(tmp_path, "m-00001-of-00002.gguf") / "m-00001-of-00002.gguf"
    assert resolve_model(str(path)) == ModelSource(path, "gguf", "m")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = touch(tmp_path, "a.gguf") / "a.gguf"
    assert resolve_model("~/a.gguf").path == path


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    touch(tmp_path, "readme.txt", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(ModelNotFound, match=r"no \.gguf file, no mlc-chat-config\.json, no config"):
        resolve_model(str(tmp_path))
    touch(tmp_path, "m-00001-of-00003.gguf")
    path = tmp_path / "m-00001-of-00003.gguf"
    assert resolve_model(str(tmp_path)) == ModelSource(path, "gguf", "m")


def test_a_folder_with_a_chat_config(tmp_path: Path) -> None:
    touch(tmp_path / "Mine", "mlc-chat-config.json", "a.gguf", "b.gguf")
    folder = tmp_path / "Mine"
    assert resolve_model(str(folder)) == ModelSource(folder, "folder", "Mine")


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    folder = touch(tmp_path / "Mine", "config.json", "model.safetensors")
    assert resolve_model(str(folder)) == ModelSource(folder, "folder", "Mine")
    path = touch(folder, "a.gguf") / "a.gguf"
    assert resolve_model(str(folder)) == ModelSource(path, "gguf", "a")


def test_a_folder_with_several_models_names_them(tmp_path: Path) -> None:
    touch(tmp_path, "b.gguf", "a.GGUF", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf")
    with pytest.raises(ModelNotFound, match=r"3 models there.* of a\.GGUF, b\.gguf, c-00001-of"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("model", ["none.gguf", "", "user/repo", "x" * 5000, "Why?\nBecause\0"])
def test_nothing_there(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(model)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500 and repr(model)[:50] in message


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("Qwen/Qwen3-0.6B", "HF://Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "HF://Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("hf.co/user/repo", "HF://user/repo"),
        ("huggingface.co/user/repo/a.gguf", "HF://user/repo/a.gguf"),
    ],
)
def test_names_of_hugging_face_lead_to_addresses(
    model: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=rf"no such file or folder; did you mean {meant}\?$"):
        resolve_model(model)


@pytest.mark.parametrize("model", ["llama3.2", "models/a.gguf", "./user/repo", "/user/repo"])
def test_other_names_are_told_the_forms(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelNotFound, match=r"or folder; give a \.gguf file, .* or HF://user/repo$"
    ):
        resolve_model(model)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no mlc-chat-config"):
        resolve_model(str(tmp_path))
