"""Matrices behind the pooling, in folders of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_folders import folder_of
from safetensors.numpy import save_file
from tiny_encoders import HIDDEN, TinyEncoder

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.model_files.huggingface import HuggingFaceModel

IDENTITY = "torch.nn.modules.linear.Identity"


def write(folder: Path, sizes: list[tuple[int, int]], **changes: Any) -> Path:
    """A tiny encoder with modules of these rows and columns. changes: ... takes a field away."""
    folder_of(TinyEncoder(), "bert").write(folder)
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for i, (rows, columns) in enumerate(sizes):
        path = f"{i + 2}_Dense"
        modules.append({"type": "sentence_transformers.models.Dense", "path": path})
        (folder / path).mkdir()
        config = {"in_features": columns, "out_features": rows, "bias": False}
        said = {**config, "activation_function": IDENTITY, **changes}
        said = {key: value for key, value in said.items() if value is not ...}
        (folder / path / "config.json").write_text(json.dumps(said))
        values = np.full((rows, columns), i + 1, np.float32)
        save_file({"linear.weight": values}, str(folder / path / "model.safetensors"))
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_they_are_part_of_the_model(tmp_path: Path) -> None:
    found = HuggingFaceModel.open(write(tmp_path / "folder", [(96, HIDDEN), (32, 96)]))
    encoder = found.plan().spec.encoder
    assert encoder is not None and encoder.projections == (96, 32)
    assert found.pooling == "mean"
    assert found.tensors["dense_3.weight"].data.view(np.float32)[0] == 2
    assert [path.parent.name for path, _ in found.opened][-2:] == ["2_Dense", "3_Dense"]


@pytest.mark.parametrize(
    ("sizes", "changes", "error", "word"),
    [
        ([(32, HIDDEN)], {"bias": True}, UnsupportedModel, "2_Dense/config.json: bias is true"),
        (
            [(32, HIDDEN)],
            {"activation_function": "torch.nn.modules.activation.Tanh"},
            UnsupportedModel,
            r"activation_function is '.*Tanh'; supported: Identity",
        ),
        ([(32, HIDDEN)], {"activation_function": ...}, UnsupportedModel, "is 'Tanh'; supported"),
        ([(HIDDEN, HIDDEN)], {"use_residual": True}, UnsupportedModel, "use_residual is true"),
        (
            [(32, HIDDEN)],
            {"module_output_name": "other"},
            UnsupportedModel,
            'module_output_name is "other"; supported: "sentence_embedding"',
        ),
        ([(32, HIDDEN)] * 3, {}, UnsupportedModel, "3 modules of type Dense; up to 2"),
        ([(32, HIDDEN + 1)], {}, ModelFileError, r"shape \(32, 65\), expected \(32, 64\)"),
        ([(32, HIDDEN), (8, HIDDEN)], {}, ModelFileError, r"expected \(8, 32\)"),
    ],
)
def test_others_are_refused(
    tmp_path: Path,
    sizes: list[tuple[int, int]],
    changes: dict[str, Any],
    error: type[Exception],
    word: str,
) -> None:
    with pytest.raises(error, match=word):
        HuggingFaceModel.open(write(tmp_path / "folder", sizes, **changes))


def test_broken_modules_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", [(32, HIDDEN)])
    save_file({"other": np.zeros(1, np.float32)}, str(folder / "2_Dense" / "model.safetensors"))
    with pytest.raises(ModelFileError, match=r"the one tensor linear\.weight was expected"):
        HuggingFaceModel.open(folder)
    text = (folder / "modules.json").read_text()
    for path in ("..", "../2_Dense"):
        (folder / "modules.json").write_text(text.replace("2_Dense", path))
        with pytest.raises(ModelFileError, match="should be a folder in it"):
            HuggingFaceModel.open(folder)
