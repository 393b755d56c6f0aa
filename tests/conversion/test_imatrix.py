"""The importance of columns, as llama-imatrix writes it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from conversion_tools import tiny_gguf

from mlc_llm.cli.__main__ import main
from mlc_llm.conversion.importance import above_zero, by_expert, read_importance
from mlc_llm.errors import UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.quantization.ggml_quantize import quantize_weighted
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

NAME = "blk.0.attn_q.weight"
Values = dict[str, npt.NDArray[np.float32]]


@pytest.fixture
def model(tmp_path: Path) -> GGUFModel:
    return tiny_gguf(tmp_path / "model.gguf", hidden=256, head_dim=64, intermediate=256)


def means(model: GGUFModel) -> Values:
    """Mean squares of two matrices, and of one that the model does not have."""
    rng = np.random.default_rng(2)
    names = (NAME, "blk.1.ffn_down.weight", "other.weight")
    return {name: rng.uniform(0, 3, 256).astype(np.float32) for name in names}


def gguf_file(path: Path, given: Values, calls: float = 4) -> Path:
    tensors = {}
    for name, values in given.items():
        sums, counts = values[None] * np.float32(calls), np.full((1, 1), calls, np.float32)
        tensors[f"{name}.in_sum2"] = TensorData.quantized(sums, "F32")
        tensors[f"{name}.counts"] = TensorData.quantized(counts, "F32")
    write_gguf(path, {"general.type": "imatrix", "imatrix.chunk_size": 512}, tensors)
    return path


def dat_file(path: Path, given: Values, calls: int = 4) -> Path:
    parts = [struct.pack("<i", len(given))]
    for name, values in given.items():
        raw = name.encode()
        parts += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", calls, values.size)]
        parts.append((values * np.float32(calls)).tobytes())
    parts += [struct.pack("<ii", calls, 4), b"text"]
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("write", [gguf_file, dat_file])
def test_both_forms_are_read(
    write: Callable[[Path, Values], Path], model: GGUFModel, tmp_path: Path
) -> None:
    stated = means(model)
    read = read_importance(write(tmp_path / "imatrix", stated), model.plan())
    assert set(read.found) == {NAME, "blk.1.ffn_down.weight"}
    assert read.matrices == 16
    for name, values in read.found.items():
        assert np.allclose(values, above_zero(stated[name]), rtol=1e-6)
        assert values.min() > 0


def test_the_file_chooses_the_scales(
    model: GGUFModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gguf_file(tmp_path / "imatrix.gguf", means(model))
    words = ["convert_weight", str(model.path), "-o", str(tmp_path / "out.gguf")]
    assert main([*words, "--quantization", "q4_k", "--imatrix", str(path)]) == 0
    assert "[importance of 2 of 16 matrices, from " in capsys.readouterr().err
    tensor, cost = model.tensors[NAME], read_importance(path, model.plan()).found[NAME]
    rows = tensor.data.view(np.float32).reshape(tensor.shape)
    made = GGUFFile.open(tmp_path / "out.gguf").tensors[NAME]
    assert np.array_equal(made.data, quantize_weighted("Q4_K", rows, cost))


def test_experts_without_tokens_get_the_mean_of_the_others() -> None:
    sums = np.array([[2, 4], [0, 0], [9, 3]], np.float32)
    found = by_expert(sums, np.array([2, 0, 3], np.float32))
    assert np.allclose(found, [[1, 2], [11 / 5, 7 / 5], [3, 1]])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is no file of llama-imatrix, or it ends too early"),
        (struct.pack("<i", -3), "is no file of llama-imatrix"),
        (struct.pack("<ii", 1, 1 << 30), "is no file of llama-imatrix"),
        (struct.pack("<ii1sii", 1, 1, b"x", 1, 1 << 30), "ends too early"),
        (b"GGUF", "version lies beyond the end of the file"),
    ],
)
def test_broken_files_are_named(data: bytes, words: str, model: GGUFModel, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_importance(path, model.plan())
    assert words in str(error.value).lower() and "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_files_of_other_models_are_named(model: GGUFModel, tmp_path: Path) -> None:
    plan, values = model.plan(), np.ones(64, np.float32)
    with pytest.raises(UserError, match="has no matrix of this model"):
        read_importance(dat_file(tmp_path / "a", {"other": values}), plan)
    with pytest.raises(UserError, match=r"attn_q.weight has 64 values; the matrix has 256 columns"):
        read_importance(dat_file(tmp_path / "b", {NAME: values}), plan)
    with pytest.raises(UserError, match="has values that are no sums of squares"):
        read_importance(gguf_file(tmp_path / "c", {NAME: -np.ones(256, np.float32)}), plan)
    with pytest.raises(UserError, match="No such file"):
        read_importance(tmp_path / "d", plan)


def test_flags_that_do_not_fit_are_named(
    model: GGUFModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert_weight", str(model.path), "-o", str(tmp_path / "out"), "--imatrix", "x"]
    assert main([*words, "--quantization", "q8_0"]) == 2
    assert "--imatrix chooses scales of q3f16_0" in capsys.readouterr().err
    assert main([*words, "--quantization", "q4_k", "--calibrate", "y"]) == 2
    assert "give one of them" in capsys.readouterr().err
