"""Whose weights a model gets from the cache: its own, however its file is called or replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mlc_llm.compiler import jit, weights
from mlc_llm.errors import ModelFileError
from mlc_llm.library.metadata import METADATA_FILE, PARAMS_FILE
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.testing.tiny_model import write_tiny_model


@pytest.fixture(autouse=True)
def _no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))

    def build(config: object, isa: object, folder: Path, **_: object) -> None:
        (folder / METADATA_FILE).touch()

    monkeypatch.setattr("mlc_llm.compiler.build.build_library", build)


def folder_of(path: Path) -> Path:
    return jit.prepare(GGUFModel.open(path), "portable").weights


def bytes_of(path: Path) -> bytes:
    return (folder_of(path) / PARAMS_FILE).read_bytes()


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "chat1.gguf", seed=1)
    second = write_tiny_model(tmp_path / "chat[1].gguf", seed=2)
    assert bytes_of(first) != bytes_of(second)


@pytest.mark.parametrize("moved", [True, False])
def test_another_model_of_the_same_size_and_time(tmp_path: Path, moved: bool) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", seed=1)
    other = write_tiny_model(tmp_path / "other.gguf", seed=2)
    before, stat = bytes_of(model), model.stat()
    assert other.stat().st_size == stat.st_size
    if moved:
        other.replace(model)
    else:
        model.write_bytes(other.read_bytes())
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert bytes_of(model) != before


def test_one_weight_of_a_fine_tune(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf")
    before, stat = bytes_of(model), model.stat()
    place = model.stat().st_size - 1000
    with model.open("r+b") as file:
        file.seek(place)
        value = file.read(1)
        file.seek(place)
        file.write(bytes([value[0] ^ 0x11]))
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert bytes_of(model) != before


def test_copies_share_their_packed_weights(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf")
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copyfile(model, tmp_path / "elsewhere" / "copy.gguf"))
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert folder_of(model) == folder_of(copy) == folder_of(link)


def test_weights_of_a_file_that_changes_while_it_is_packed_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", seed=1)
    other = write_tiny_model(tmp_path / "other.gguf", seed=2).read_bytes()
    inner = weights.pack_weights

    def pack(*arguments: object) -> None:
        model.write_bytes(other)
        inner(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(weights, "pack_weights", pack)
    with pytest.raises(ModelFileError, match=r"model\.gguf was changed while"):
        folder_of(model)
    packed = tmp_path / "home" / "model_weights" / "packed"
    assert [path for path in packed.iterdir() if path.is_dir()] == []


def test_weights_of_a_file_replaced_behind_its_opening_are_not_kept(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", seed=1)
    opened = GGUFModel.open(model)
    write_tiny_model(tmp_path / "other.gguf", seed=2).replace(model)
    with pytest.raises(ModelFileError, match=r"model\.gguf was changed while it was opened"):
        jit.prepare(opened, "portable")
