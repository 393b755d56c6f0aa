"""Models that are not what they say: each format names what is wrong, and leaves nothing behind.

A format is read into tensors and a config, one thing is changed, and it is written again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import convert, tiny_gguf
from tiny_folders import INDEX, Folder, Stored, folder_of

from mlc_llm.cli.__main__ import main
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

LAYERS = 2


@dataclass
class Model:
    """Tensors by name, and where they are written."""

    path: Path
    tensors: dict[str, Any]
    config: dict[str, Any]
    write: Callable[[Model], Path]
    victim: str
    """The tensor that is changed."""
    layers: str = "num_hidden_layers"
    """The field of the config."""


def gguf(folder: Path) -> Model:
    file = tiny_gguf(folder / "tiny.gguf").file
    tensors = {
        name: TensorData(one.shape, one.kind, one.data.tobytes())
        for name, one in file.tensors.items()
    }
    config = {key: file.metadata[key] for key in file.metadata}

    def write(model: Model) -> Path:
        write_gguf(model.path, model.config, model.tensors)
        return model.path

    path = folder / "model.gguf"
    return Model(path, tensors, config, write, "blk.1.ffn_up.weight", "llama.block_count")


def split_gguf(folder: Path) -> Model:
    whole = gguf(folder)

    def write(model: Model) -> Path:
        names = list(model.tensors)
        parts = [folder / f"model-{i + 1:05d}-of-00002.gguf" for i in range(2)]
        for i, path in enumerate(parts):
            own = {name: model.tensors[name] for name in names[i::2]}
            about = {"split.no": i, "split.count": 2, "split.tensors.count": len(names)}
            write_gguf(path, (model.config if i == 0 else {}) | about, own)
        return parts[0]

    return Model(folder, whole.tensors, whole.config, write, whole.victim, whole.layers)


def hugging_face(folder: Path, shards: int = 1) -> Model:
    made = folder_of(tiny_gguf(folder / "tiny.gguf").path)
    path = folder / "folder"

    def write(model: Model) -> Path:
        return Folder(model.config, model.tensors, made.texts).write(path, shards)

    return Model(path, made.tensors, made.config, write, "model.layers.1.mlp.up_proj.weight")


def packed(folder: Path, method: str) -> Model:
    """One matrix [160, 64] of the folder has 4 bits."""
    model, stem = hugging_face(folder), "model.layers.1.mlp.up_proj"
    rows, columns = model.tensors.pop(f"{stem}.weight").shape
    how: dict[str, Any] = {"quant_method": method, "bits": 4, "group_size": 32}
    shapes = {
        "gptq": {"qweight": (columns // 8, rows), "qzeros": (2, rows // 8), "scales": (2, rows)},
        "awq": {"qweight": (columns, rows // 8), "qzeros": (2, rows // 8), "scales": (2, rows)},
        "compressed-tensors": {"weight_packed": (rows, columns // 8), "weight_scale": (rows, 2)},
    }[method]
    for end, shape in shapes.items():
        kind, size = ("F16", 2) if "scale" in end else ("I32", 4)
        data = np.zeros(int(np.prod(shape)) * size, np.uint8)
        model.tensors[f"{stem}.{end}"] = Stored(kind, shape, data)
    if method == "awq":
        how["version"] = "gemm"
    if method == "compressed-tensors":
        how = {"quant_method": method, "format": "pack-quantized"}
        how["config_groups"] = {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}
    model.config["quantization_config"] = how
    model.victim = f"{stem}.{next(iter(shapes))}"
    return model


FORMATS: dict[str, Callable[[Path], Model]] = {
    "gguf": gguf,
    "split gguf": split_gguf,
    "hugging face": hugging_face,
    "shards": lambda folder: hugging_face(folder, 3),
    "gptq": lambda folder: packed(folder, "gptq"),
    "awq": lambda folder: packed(folder, "awq"),
    "compressed-tensors": lambda folder: packed(folder, "compressed-tensors"),
}


def resized(tensor: Any) -> Any:
    """With one row less."""
    rows, *rest = tensor.shape
    data = tensor.data[: len(tensor.data) // rows * (rows - 1)]
    if isinstance(tensor, TensorData):
        return TensorData((rows - 1, *rest), tensor.kind, data)
    return Stored(tensor.kind, (rows - 1, *rest), data)


def wrong_shape(model: Model) -> str:
    model.tensors[model.victim] = resized(model.tensors[model.victim])
    return model.victim.rsplit(".", 1)[0]  # of a packed matrix another part may not fit


def missing(model: Model) -> str:
    del model.tensors[model.victim]
    return model.victim.rsplit(".", 1)[0]


def extra(model: Model) -> str:
    norm = next(name for name in model.tensors if "norm" in name)
    model.tensors["model.vision.weight"] = model.tensors[norm]
    return "model.vision.weight"


def more_layers(model: Model) -> str:
    model.config[model.layers] = LAYERS + 1
    return f"{'blk' if 'block' in model.layers else 'model.layers'}.{LAYERS}."


def fewer_layers(model: Model) -> str:
    model.config[model.layers] = LAYERS - 1
    return f"{'blk' if 'block' in model.layers else 'model.layers'}.{LAYERS - 1}."


def other_width(model: Model) -> str:
    key = next(k for k in ("hidden_size", "llama.embedding_length") if k in model.config)
    model.config[key] *= 2
    return "has shape"


DAMAGES = [wrong_shape, missing, extra, more_layers, fewer_layers, other_width]


def refused(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says. It leaves nothing in the folder of the output, nor beside it."""
    output = folder / "new" / "out"
    output.parent.mkdir()
    words = ["convert_weight", str(model), "--quantization", "q4f16_1", "-o", str(output)]
    assert main(words) == 2
    assert not list(output.parent.iterdir())
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said, said
    return said


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", FORMATS)
def test_what_does_not_fit_is_named(
    kind: str,
    damage: Callable[[Model], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = FORMATS[kind](tmp_path)
    expected = damage(model)
    assert expected in refused(model.write(model), tmp_path, capsys)


@pytest.mark.parametrize("kind", FORMATS)
def test_without_damage_it_is_converted(kind: str, tmp_path: Path) -> None:
    model = FORMATS[kind](tmp_path)
    path = str(model.write(model))
    words = ["convert_weight", path, "--quantization", "q4f16_1", "-o", str(tmp_path / "out")]
    assert main([*words, "--quiet"]) == 0


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


@pytest.mark.parametrize("kind", ["split gguf", "shards", "mlc"])
def test_swapped_shards_are_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "mlc":
        monkeypatch.setattr("mlc_llm.conversion.shards.SHARD_BYTES", 1 << 14)
        convert(tiny_gguf(tmp_path / "tiny.gguf"), "q4f16_1", tmp_path / "folder")
        path, files = tmp_path / "folder", sorted((tmp_path / "folder").glob("params_shard_*.bin"))
    else:
        model = FORMATS[kind](tmp_path)
        path = model.write(model)
        files = sorted((path if path.is_dir() else path.parent).glob("model-*"))
    swap(*files[:2])
    assert any(file.name in refused(path, tmp_path, capsys) for file in files[:2])


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_that_leaves_the_folder_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FORMATS["shards"](tmp_path)
    path = model.write(model)
    shutil.copy(path / "model-00001-of-00003.safetensors", tmp_path / "outside.safetensors")
    index = json.loads((path / INDEX).read_text())
    index["weight_map"][model.victim] = name
    (path / INDEX).write_text(json.dumps(index))
    assert "should be the name of a file in this folder" in refused(path, tmp_path, capsys)


def change_mlc(folder: Path, damage: str) -> str:
    """Change a folder of MLC LLM. Returns what is to be named."""
    config, index = folder / "mlc-chat-config.json", folder / "tensor-cache.json"
    chat, cache = json.loads(config.read_text()), json.loads(index.read_text())
    records = cache["records"][0]["records"]
    record = next(one for one in records if one["name"].endswith("norm.weight"))
    name: str = record["name"]
    if damage == "missing":
        records.remove(record)
    elif damage == "extra":
        records.append({**record, "name": "vision.weight"})
        name = "vision.weight"
    elif damage == "wrong shape":
        record["shape"] = [2, record["shape"][0] // 2]
    elif damage == "outside":
        cache["records"][0]["dataPath"] = name = "../params_shard_0.bin"
    else:
        chat["model_config"]["hidden_size"] *= 2
        name = "has shape"
    config.write_text(json.dumps(chat))
    index.write_text(json.dumps(cache))
    return name


@pytest.mark.parametrize("damage", ["missing", "extra", "wrong shape", "outside", "other width"])
def test_what_does_not_fit_in_a_folder_of_mlc_llm_is_named(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(tiny_gguf(tmp_path / "tiny.gguf"), "q4f16_1", tmp_path / "folder")
    name = change_mlc(tmp_path / "folder", damage)
    assert name in refused(tmp_path / "folder", tmp_path, capsys)


def test_a_gguf_file_is_sound_before_it_is_damaged(tmp_path: Path) -> None:
    model = gguf(tmp_path)
    assert list(GGUFFile.open(model.write(model)).tensors) == list(model.tensors)
