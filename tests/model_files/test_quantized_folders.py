"""Folders with quantised matrices hold the values that their makers' formulas say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_folders import Folder, Stored, folder_of

from mlc_llm.backends.cpu.formats import format_of_kind
from mlc_llm.backends.cpu.packing import Packed, unpack
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.jit import prepare
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.quantization.float8 import E4M3
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.testing.tiny_model import write_tiny_model

Floats = npt.NDArray[np.float32]
Parts = dict[str, Stored]
RNG = np.random.default_rng(3)
STEM = "model.layers.1.mlp.down_proj"
ROWS, COLUMNS, GROUP = 64, 96, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def stored(kind: str, values: npt.NDArray[Any]) -> Stored:
    data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    return Stored(kind, values.shape, data)


def packed(q: npt.NDArray[np.uint8], order: tuple[int, ...] = tuple(range(8))) -> Any:
    """int32 words of eight neighbours along the last axis."""
    eight = q.reshape(*q.shape[:-1], -1, 8)[..., order].astype(np.uint32)
    words = np.zeros(eight.shape[:-1], np.uint32)
    for i in range(8):
        words |= eight[..., i] << np.uint32(4 * i)
    return words.view(np.int32)


def numbers() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16], npt.NDArray[np.uint8]]:
    """q [rows, columns], and scales and zeros [rows, groups]."""
    groups = COLUMNS // GROUP
    q = RNG.integers(0, 16, (ROWS, COLUMNS), dtype=np.uint8)
    scale = RNG.uniform(0.01, 0.03, (ROWS, groups)).astype(np.float16)
    return q, scale, RNG.integers(1, 16, (ROWS, groups), dtype=np.uint8)


def value(q: Any, scale: Any, zero: Any) -> Floats:
    scales, zeros = (np.repeat(one.astype(np.float32), GROUP, axis=1) for one in (scale, zero))
    return np.asarray(scales * (q.astype(np.float32) - zeros), np.float32)


def gptq_in_order() -> tuple[dict[str, Any], Parts, Floats]:
    """Columns in the order of their importance (`desc_act`)."""
    how, parts, _ = gptq(1)
    q, scale, zero = numbers()
    group = RNG.permutation(np.arange(COLUMNS) // GROUP).astype(np.int32)
    parts |= {
        "qweight": stored("I32", packed(q).T),
        "qzeros": stored("I32", packed(zero.T - np.uint8(1))),
        "scales": stored("F16", scale.T),
        "g_idx": stored("I32", group),
    }
    values = scale.astype(np.float32)[:, group] * (q.astype(np.float32) - zero[:, group])
    return how, parts, values


def gptq(version: int) -> tuple[dict[str, Any], Parts, Floats]:
    q, scale, zero = numbers()
    parts = {
        "qweight": stored("I32", packed(q).T),
        "qzeros": stored("I32", packed((zero.T - np.uint8(version == 1)) & 15)),
        "scales": stored("F16", scale.T),
        "g_idx": stored("I32", (np.arange(COLUMNS) // GROUP).astype(np.int32)),
    }
    form = "gptq" if version == 1 else "gptq_v2"
    how = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": form}
    return how, parts, value(q, scale, zero)


def awq() -> tuple[dict[str, Any], Parts, Floats]:
    q, scale, zero = numbers()
    parts = {
        "qweight": stored("I32", packed(q.T, AWQ_ORDER)),
        "qzeros": stored("I32", packed(zero.T, AWQ_ORDER)),
        "scales": stored("F16", scale.T),
    }
    how = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    return how, parts, value(q, scale, zero)


def compressed(symmetric: bool) -> tuple[dict[str, Any], Parts, Floats]:
    q, scale, zero = numbers()
    bfloat = (scale.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    parts = {
        "weight_packed": stored("I32", packed(q)),
        "weight_scale": stored("BF16", bfloat),
        "weight_shape": stored("I64", np.array([ROWS, COLUMNS])),
    }
    if symmetric:
        zero = np.full_like(zero, 8)
    else:
        parts["weight_zero_point"] = stored("I32", packed(zero.T).T)
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group"}
    how = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }
    floats = (bfloat.astype(np.uint32) << 16).view(np.float32)
    return how, parts, value(q, floats, zero)


def float8(block: tuple[int, int] | None = (32, 40)) -> tuple[dict[str, Any], Parts, Floats]:
    byte = RNG.integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)
    byte[(byte & 127) == 127] = 0
    high, wide = block or (ROWS, COLUMNS)
    scale = RNG.uniform(1e-4, 3e-4, (-(-ROWS // high), -(-COLUMNS // wide))).astype(np.float32)
    parts = {
        "weight": stored("F8_E4M3", byte),
        "weight_scale_inv": stored("F32", scale if block else scale[0, 0].reshape(())),
        "input_scale": stored("F32", np.ones((), np.float32)),
    }
    how: dict[str, Any] = {"quant_method": "fp8"}
    if block is not None:
        how["weight_block_size"] = list(block)
    scales = np.repeat(np.repeat(scale, high, axis=0), wide, axis=1)[:ROWS, :COLUMNS]
    return how, parts, E4M3[byte] * scales


def float8_rows() -> tuple[dict[str, Any], Parts, Floats]:
    """compressed-tensors: each row has a scale."""
    _, parts, values = float8((1, COLUMNS))
    parts["weight_scale"] = parts.pop("weight_scale_inv")
    return {"quant_method": "compressed-tensors", "format": "float-quantized"}, parts, values


CASES: dict[str, Callable[[], tuple[dict[str, Any], Parts, Floats]]] = {
    "gptq": lambda: gptq(1),
    "gptq_v2": lambda: gptq(2),
    "gptq, in order": gptq_in_order,
    "awq": awq,
    "compressed": lambda: compressed(False),
    "compressed, symmetric": lambda: compressed(True),
    "fp8": float8,
    "fp8, blocks of whole groups": lambda: float8((24, 64)),
    "fp8, rows": float8_rows,
    "fp8, one scale": lambda: float8(None),
}


def made(folder: Folder, case: str) -> Floats:
    """Put a quantised matrix into a folder. Returns its values."""
    how, parts, values = CASES[case]()
    folder.config["quantization_config"] = how
    del folder.tensors[f"{STEM}.weight"]
    folder.tensors |= {f"{STEM}.{end}": one for end, one in parts.items()}
    return values


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    return folder_of(write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F32"}))


def floats(tensor: Tensor) -> Floats:
    return dequantize(tensor.kind, tensor.data, tensor.shape)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_formula(tmp_path: Path, folder: Folder, case: str) -> None:
    values = made(folder, case)
    model = HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    tensor = model.tensors["blk.1.ffn_down.weight"]
    assert (floats(tensor) == values).all()
    assert np.abs(values).max() > 0.01
    tensor.give_back()


BY_BLOCKS = ["fp8, blocks of whole groups", "fp8, rows", "fp8, one scale"]
"""Cases that keep 8 bits."""


@pytest.mark.parametrize("case", BY_BLOCKS)
def test_floats_of_8_bits_keep_their_size(case: str, tmp_path: Path, folder: Folder) -> None:
    made(folder, case)
    plan = HuggingFaceModel.open(folder.write(tmp_path / "folder")).plan()
    kind = plan.spec.kinds["layers.1.down"]
    assert kind == "float8_e4m3"
    (blocks, groups, words), dtype = backend_of("portable").layout(kind).shape(ROWS, COLUMNS)
    assert dtype == "int32"
    assert 32 * blocks * groups * words == 9 * ROWS * COLUMNS, "bits"


@pytest.mark.parametrize("case", ["gptq", "gptq, in order", "fp8", *BY_BLOCKS])
@pytest.mark.parametrize("kernels", ["reference", "portable", "vnni"])
def test_packed_values_are_the_same(
    tmp_path: Path, folder: Folder, case: str, kernels: str
) -> None:
    """What kernels read holds the values exactly."""
    values = made(folder, case)
    model = HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    plan = model.plan()
    pack_weights(plan, backend_of(kernels), model.tensors, tmp_path, lambda _: None)
    entries = json.loads((tmp_path / INDEX_FILE).read_text())["tensors"]
    (one,) = [one for one in entries if one["name"] == "layers.1.down.packed"]
    data = (tmp_path / PARAMS_FILE).read_bytes()[one["offset"] :]
    count = int(np.prod(one["shape"]))
    found = np.frombuffer(data, one["dtype"], count).reshape(one["shape"])
    if kernels == "reference":
        assert (found == values).all()
        return
    fmt = format_of_kind(plan.spec.kinds["layers.1.down"], half=kernels != "portable")
    assert (unpack(Packed(fmt, ROWS, COLUMNS, found)) == values).all()


def change(case: str, end: str, *, to: Stored | None) -> Callable[[Folder], None]:
    def changed(folder: Folder) -> None:
        made(folder, case)
        if to is None:
            del folder.tensors[f"{STEM}.{end}"]
        else:
            folder.tensors[f"{STEM}.{end}"] = to

    return changed


def field(case: str, name: str, to: object) -> Callable[[Folder], None]:
    def changed(folder: Folder) -> None:
        made(folder, case)
        folder.config["quantization_config"][name] = to

    return changed


def zeros(kind: str, *shape: int) -> Stored:
    dtype = {"I32": np.int32, "F16": np.float16, "F32": np.float32}[kind]
    return stored(kind, np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (change("gptq", "scales", to=None), ModelFileError, f"there is no tensor {STEM}.scales"),
        (change("gptq", "qzeros", to=None), ModelFileError, f"there is no tensor {STEM}.qzeros"),
        (change("gptq", "qweight", to=None), ModelFileError, f"there is no tensor {STEM}.weight"),
        (change("gptq", "g_idx", to=zeros("I32", 3)), ModelFileError, "g_idx of type I32, shape"),
        (change("gptq", "g_idx", to=stored("I32", np.full(COLUMNS, 3, np.int32))), ModelFileError,
         "g_idx has numbers beyond its 3 groups"),
        (change("gptq", "scales", to=zeros("F16", 3, 32)), ModelFileError, "shape (3, 32), exp"),
        (change("gptq", "scales", to=zeros("F16", 6, 64)), UnsupportedModel, "6 groups of 96"),
        (change("gptq", "scales", to=zeros("I32", 3, 64)), UnsupportedModel, "scales of type I32"),
        (change("awq", "qzeros", to=zeros("I32", 3, 4)), ModelFileError, "qzeros has shape (3, 4)"),
        (change("awq", "qzeros", to=zeros("F16", 3, 8)), UnsupportedModel, "qzeros of type F16"),
        (change("awq", "qweight", to=zeros("F32", 96, 8)), UnsupportedModel, "qweight of type F32"),
        (change("fp8", "weight_scale_inv", to=None), ModelFileError, "no tensor " + STEM),
        (change("fp8", "weight_scale_inv", to=zeros("F32", 2, 2)), ModelFileError, "(2, 2), exp"),
        (change("fp8", "weight_scale_inv", to=zeros("I32", 2, 3)), UnsupportedModel, "type I32"),
        (field("gptq", "bits", 8), UnsupportedModel, "quantization_config.bits is 8; supported: 4"),
        (field("awq", "version", "gemv"), UnsupportedModel, "version is 'gemv'; supported: gemm"),
        (field("fp8", "weight_block_size", [0, 1]), ModelFileError, "weight_block_size is [0, 1]"),
        (field("compressed", "format", "dense"), UnsupportedModel, "format is 'dense'"),
        (field("compressed", "transform_config", {"config_groups": {"u": {}}}), UnsupportedModel,
         "quantization_config.transform_config is {'config_groups'"),
        (field("gptq", "quant_method", "x"), UnsupportedModel, "supported: awq, compressed-"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path,
    folder: Folder,
    changed: Callable[[Folder], None],
    error: type[MLCError],
    words: str,
) -> None:
    changed(folder)
    with pytest.raises(error) as caught:
        HuggingFaceModel.open(folder.write(tmp_path / "folder"))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_that_are_none(tmp_path: Path, folder: Folder) -> None:
    made(folder, "fp8")
    byte = np.full((ROWS, COLUMNS), 127, np.uint8)
    folder.tensors[f"{STEM}.weight"] = stored("F8_E4M3", byte)
    with pytest.raises(ModelFileError, match=f"tensor {STEM}.weight holds NaN"):
        prepare(HuggingFaceModel.open(folder.write(tmp_path / "folder")), "portable")


def test_bytes_are_the_numbers_of_e4m3() -> None:
    assert E4M3[[0x38, 0xB8, 0x7E, 0x01, 0x08]].tolist() == [1.0, -1.0, 448.0, 2.0**-9, 2.0**-6]
    assert np.isnan(E4M3[[0x7F, 0xFF]]).all() and np.isfinite(E4M3).sum() == 254
