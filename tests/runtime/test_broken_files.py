"""Cached libraries and weights that are cut short, flipped or foreign: named, never crashed on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TinyModels

from mlc_llm.backends.cpu import amx
from mlc_llm.backends.cpu.codegen import BYTECODE_FILE
from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.library.metadata import (
    INDEX_FILE,
    METADATA_FILE,
    PARAMS_FILE,
    BrokenLibrary,
    Metadata,
    rope_param,
    rope_rows_param,
    rope_scaling_param,
)
from mlc_llm.runtime.library import Library, read_metadata
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.packed_file import BrokenParams, ReadWeights, map_packed, read_packed
from mlc_llm.runtime.params import ordered_params, params_in, rotations

CODE = (BYTECODE_FILE, "kernels.rope_append.*.o")
Change = Callable[[Path], None]


@pytest.fixture
def library(tiny_models: TinyModels, tmp_path: Path) -> Path:
    """A copy of a good library."""
    source = tiny_models.library("floats", "portable")
    return Path(shutil.copytree(source, tmp_path / "library"))


@pytest.fixture
def weights(tiny_models: TinyModels, tmp_path: Path) -> Path:
    """A copy of good weights."""
    source = tiny_models.weights("floats", "portable")
    return Path(shutil.copytree(source, tmp_path / "weights"))


@pytest.fixture(scope="module")
def metadata_text(tiny_models: TinyModels) -> str:
    return (tiny_models.library("floats", "portable") / METADATA_FILE).read_text()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = [truncate, empty, lengthen, Path.unlink, replace_by_folder]


@pytest.mark.parametrize("damage", [*DAMAGE, flip], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CODE)
def test_damaged_code_is_never_loaded(library: Path, name: str, damage: Change) -> None:
    (path,) = library.glob(name)
    damage(path)
    with pytest.raises(BrokenLibrary, match=str(library)):
        Library(library)


def test_tiles_that_the_system_does_not_permit(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running them would kill the process."""
    metadata = replace(read_metadata(library), requires=("amx",))
    (library / METADATA_FILE).write_text(metadata.to_json())
    monkeypatch.setattr(amx, "permitted", lambda: False)
    with pytest.raises(BrokenLibrary, match="does not permit"):
        Library(library)
    monkeypatch.setattr(amx, "permitted", lambda: True)
    Library(library)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_damaged_metadata(library: Path, damage: Change) -> None:
    damage(library / METADATA_FILE)
    with pytest.raises(BrokenLibrary, match=str(library)):
        read_metadata(library)


FOREIGN_METADATA: dict[str, Any] = {
    "a list": [],
    "a number": 3,
    "nothing": None,
    "empty": {},
    "another version": {"version": 99},
    "no types": {"version": 1, "kv": 3, "params": 4},
}


@pytest.mark.parametrize("name", FOREIGN_METADATA)
def test_foreign_metadata(library: Path, name: str) -> None:
    (library / METADATA_FILE).write_text(json.dumps(FOREIGN_METADATA[name]))
    with pytest.raises(BrokenLibrary, match=str(library)):
        read_metadata(library)


@pytest.mark.parametrize("key", ["kv", "params", "sha256", "vocab_size", "version"])
@pytest.mark.parametrize("value", [None, "text", -1, [1], {"a": 1}], ids=str)
def test_metadata_with_a_changed_field(library: Path, key: str, value: Any) -> None:
    text = (library / METADATA_FILE).read_text()
    (library / METADATA_FILE).write_text(json.dumps({**json.loads(text), key: value}))
    with pytest.raises(BrokenLibrary, match=str(library)):
        read_metadata(library)


def test_metadata_with_any_byte_flipped(metadata_text: str) -> None:
    """Nothing is built on what is not to the letter what the compiler wrote, but for spaces."""
    raw, good = metadata_text.encode(), Metadata.from_json(metadata_text)
    for at in range(0, len(raw), 7):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        try:
            read = Metadata.from_json(changed.decode())
        except (ValueError, KeyError, TypeError):
            continue
        assert read == good, f"byte {at}"


def test_code_that_is_no_library_though_its_hash_is_right(library: Path) -> None:
    """As with a TVM that reads another format."""
    (library / BYTECODE_FILE).write_bytes(b"not bytecode at all")
    metadata = Metadata.from_json((library / METADATA_FILE).read_text())
    hashes = {**metadata.sha256, BYTECODE_FILE: sha256(b"not bytecode at all").hexdigest()}
    (library / METADATA_FILE).write_text(replace(metadata, sha256=hashes).to_json())
    with pytest.raises(BrokenLibrary, match=str(library)):
        Library(library)


READ = pytest.mark.parametrize("read", [read_packed, map_packed])


@READ
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [PARAMS_FILE, INDEX_FILE])
def test_damaged_weights(weights: Path, name: str, damage: Change, read: ReadWeights) -> None:
    damage(weights / name)
    with pytest.raises(BrokenParams, match=str(weights)):
        params_in(read(weights))


@READ
def test_weights_with_one_bit_flipped(weights: Path, read: ReadWeights) -> None:
    flip(weights / PARAMS_FILE)
    with pytest.raises(BrokenParams, match="checksum"):
        params_in(read(weights))


def test_mapped_weights_are_those_that_are_read(weights: Path) -> None:
    read, mapped = params_in(read_packed(weights)), params_in(map_packed(weights))
    assert {*read} == {*mapped}
    for name, array in mapped.items():
        assert np.array_equal(array.numpy(), read[name].numpy())
        array.numpy()[...] = 0  # nothing of it comes into the file
    assert np.array_equal(params_in(map_packed(weights))[name].numpy(), read[name].numpy())


def edit_index(weights: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((weights / INDEX_FILE).read_text())
    changed = edit(index)
    (weights / INDEX_FILE).write_text(json.dumps(index if changed is None else changed))


def second(index: dict[str, Any], **fields: Any) -> None:
    index["tensors"][1].update(fields)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda index: [index],
    "no tensors": lambda index: {**index, "tensors": None},
    "no checksum": lambda index: {"size": index["size"], "tensors": index["tensors"]},
    "checksum in text": lambda index: {**index, "crc32": str(index["crc32"])},
    "tensors of no kind": lambda index: {**index, "tensors": [1, 2]},
    "offset past the end": lambda index: second(index, offset=10**9),
    "huge offset": lambda index: second(index, offset=10**30),
    "negative offset": lambda index: second(index, offset=-64),
    "offset of another tensor": lambda index: second(index, offset=0),
    "offset moved on": lambda index: second(
        index, offset=index["tensors"][1]["offset"] + 64
    ),
    "offset in text": lambda index: second(index, offset="64"),
    "negative shape": lambda index: second(index, shape=[-1]),
    "huge shape": lambda index: second(index, shape=[10**30]),
    "smaller shape": lambda index: second(index, shape=[32]),
    "unknown type": lambda index: second(index, dtype="float99"),
    "type of objects": lambda index: second(index, dtype="object"),
    "no name": lambda index: second(index, name=[]),
    "name twice": lambda index: second(index, name=index["tensors"][0]["name"]),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_index_that_does_not_fit_the_file(weights: Path, name: str) -> None:
    edit_index(weights, EDITS[name])
    with pytest.raises(BrokenParams, match=str(weights)):
        params_in(read_packed(weights))


def runner(library: Path, weights: Path) -> ModelRunner:
    return ModelRunner(
        library, weights, num_pages=4, max_num_sequence=1, max_batch_tokens=8, context_window=64
    )


def test_weights_of_another_model(tiny_models: TinyModels, library: Path) -> None:
    for name in ("plain", "float32"):
        foreign = tiny_models.weights(name, "portable")
        with pytest.raises(BrokenParams, match="packed tensor"):
            runner(library, foreign)


@pytest.mark.parametrize("name", [rope_param(0), rope_rows_param(0), rope_scaling_param(0)])
def test_weights_without_the_rotary_frequencies(library: Path, weights: Path, name: str) -> None:
    def rename(index: dict[str, Any]) -> None:
        (entry,) = (e for e in index["tensors"] if e["name"] == name)
        entry["name"] = "something else"

    edit_index(weights, rename)
    with pytest.raises(BrokenParams, match=name):
        runner(library, weights)


def test_index_with_any_byte_flipped(tiny_models: TinyModels, library: Path, weights: Path) -> None:
    """A model runs on the right weights or not at all."""
    raw = (weights / INDEX_FILE).read_bytes()
    good = params_in(read_packed(weights))
    infos, ropes = read_metadata(library).params, [rope_param(0), rope_rows_param(0)]
    for at in range(0, len(raw), 5):
        (weights / INDEX_FILE).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            arrays = params_in(read_packed(weights))
            ordered_params(arrays, infos, CpuDevice())
            rotations(arrays, 1, 64)
        except BrokenParams:
            continue
        for name in [*[info.name for info in infos], *ropes, rope_scaling_param(0)]:
            assert arrays[name].dtype == good[name].dtype
            assert arrays[name].bytes() == good[name].bytes(), f"byte {at}"


def test_good_files_are_good(library: Path, weights: Path) -> None:
    assert runner(library, weights).logits([1, 2, 3]).shape == (3, 300)
