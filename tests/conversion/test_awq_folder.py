"""Folders that AWQ has quantised, as folders of MLC LLM: no number changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conversion_tools import quiet, read_shards, tiny_gguf
from tiny_folders import Folder, Stored, folder_of

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import MLCError, UserError
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.names import NAMES

RNG = np.random.default_rng(5)
STEMS = {"k": "self_attn.k_proj", "q": "self_attn.q_proj", "v": "self_attn.v_proj"}


def stored(kind: str, values: npt.NDArray[Any]) -> Stored:
    data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    return Stored(kind, values.shape, data)


def awq_folder(path: Path, group: int = 128, plain: str = "none") -> Folder:
    """All matrices of layers but `plain` as words, zeros and scales."""
    folder = folder_of(tiny_gguf(path / "m.gguf", hidden=128, intermediate=256, head_dim=32).path)
    for name in list(folder.tensors):
        stem = name.removesuffix(".weight")
        if "_proj" not in name or plain in name:
            continue
        rows, columns = folder.tensors.pop(name).shape
        shapes = (columns, rows // 8), (columns // group, rows // 8)
        for end, shape in zip(("qweight", "qzeros"), shapes, strict=True):
            words = RNG.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)
            folder.tensors[f"{stem}.{end}"] = stored("I32", words)
        scales = RNG.uniform(0.001, 0.03, (columns // group, rows)).astype(np.float16)
        folder.tensors[f"{stem}.scales"] = stored("F16", scales)
    how = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    folder.config["quantization_config"] = how
    return folder


def floats(model: Any, name: str) -> npt.NDArray[np.float32]:
    tensor = model.tensors[name]
    return dequantize(tensor.kind, tensor.data, tensor.shape)


@pytest.mark.parametrize("name", ["q4f16_autoawq", "q4f16_awq"])
def test_the_words_stay_as_they_are(name: str, tmp_path: Path) -> None:
    made = awq_folder(tmp_path)
    old = HuggingFaceModel.open(made.write(tmp_path / "folder"))
    result = convert_weight(old, name, tmp_path / "out", quiet)
    found = read_shards(tmp_path / "out")
    total = sum(one.nbytes for one in found.values())
    values = sum(np.prod(one.shape) for one in old.tensors.values())
    assert result.bits == pytest.approx(8 * total / values)
    for end, dtype in {"qweight": "<u4", "qzeros": "<u4", "scales": "<f2"}.items():
        parts = [made.tensors[f"model.layers.1.{STEMS[one]}.{end}"] for one in "qkv"]
        arrays = [part.data.view(dtype).reshape(part.shape) for part in parts]
        expected = np.concatenate(arrays, axis=1)
        assert np.array_equal(found[f"model.layers.1.self_attn.qkv_proj.{end}"], expected)
    config = json.loads((tmp_path / "out" / "mlc-chat-config.json").read_text())
    assert config["quantization"] == "q4f16_autoawq"
    new = MLCModel.open(tmp_path / "out")
    for tensor, one in old.tensors.items():
        if len(one.shape) == 2 and tensor.startswith("blk"):
            assert new.tensors[tensor].kind == one.kind == "zero_point4"
            assert np.array_equal(floats(new, tensor), floats(old, tensor)), tensor


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"group": 64}, "has groups of 64; q4f16_autoawq has groups of 128"),
        ({"plain": "up_proj"}, "mlp.up_proj.weight is not quantised by AWQ; .* q4f16_1 quantises"),
    ],
)
def test_other_folders_are_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    old = HuggingFaceModel.open(awq_folder(tmp_path, **more).write(tmp_path / "folder"))
    with pytest.raises(UserError, match=words):
        convert_weight(old, "q4f16_autoawq", tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


def test_nothing_is_quantised_so_at_load(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="AWQ needs a text and a long search"):
        QuantizedModel.of_files(tiny_gguf(tmp_path / "m.gguf"), "q4f16_autoawq")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("q4f16_ft", "q4f16_1 has 4 bits"),
        ("e5m2_e5m2_f16", "q8_0 has 8 bits"),
        ("e4m3_e4m3_f16", "q8_0 has 8 bits"),
        ("e4m3_e4m3_f16_max_calibrate", "q8_0 has 8 bits"),
        ("fp8_e4m3fn_bf16_block_scale", "such a folder runs as it is"),
        ("fp8_e4m3fn_bf16_block_scale_static_activation", "such a folder runs as it is"),
    ],
)
def test_other_names_of_mlc_llm_are_refused(name: str, instead: str, tmp_path: Path) -> None:
    assert name not in NAMES
    model = tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(UserError, match=f"quantization = '{name}': .*{instead}"):
        convert_weight(model, name, tmp_path / "out", quiet)
    convert_weight(model, "q4f16_1", tmp_path / "out", quiet)
    path = tmp_path / "out" / "mlc-chat-config.json"
    config = json.loads(path.read_text()) | {"quantization": name}
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"quantization = '{name}': .*{instead}"):
        MLCModel.open(tmp_path / "out")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(name="x.qzeros"), "no parameter .*qkv_proj.qzeros"),
        (lambda one: one.update(shape=one["shape"][::-1]), "qkv_proj.qzeros has shape"),
        (lambda one: one.update(dtype="float32"), "qkv_proj.qzeros is float32; it should be uint"),
    ],
)
def test_broken_folders_are_refused(change: Change, words: str, tmp_path: Path) -> None:
    old = HuggingFaceModel.open(awq_folder(tmp_path).write(tmp_path / "folder"))
    convert_weight(old, "q4f16_autoawq", tmp_path / "out", quiet)
    path = tmp_path / "out" / "tensor-cache.json"
    index = json.loads(path.read_text())
    change(next(r for r in index["records"][0]["records"] if "qkv_proj.qzeros" in r["name"]))
    path.write_text(json.dumps(index))
    with pytest.raises(MLCError, match=words):
        MLCModel.open(tmp_path / "out")
