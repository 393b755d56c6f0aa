"""Experts in GGUF files: as stacks, with gates and ups in one stack, or a tensor for each expert.
The same weights come out of all of them, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_metadata import Value
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.support.progress import no_progress
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

EXPERTS, WIDE = 3, 64
Tensors = dict[str, TensorData]


@pytest.fixture
def stacked(tmp_path: Path) -> tuple[Mapping[str, Value], Tensors]:
    """Metadata and tensors of a Mixtral with stacks, in 4 bits."""
    file = GGUFFile.open(write_tiny_model(tmp_path / "llama.gguf", shape=TinyShape()))
    more: dict[str, Value] = {"llama.expert_count": EXPERTS, "llama.expert_used_count": 2}
    more["llama.feed_forward_length"] = WIDE
    rng = np.random.default_rng(0)
    tensors = {
        name: TensorData(one.shape, one.kind, one.data.tobytes())
        for name, one in file.tensors.items()
        if not any(part in name for part in ("ffn_gate", "ffn_up", "ffn_down"))
    }
    up, down, router = (EXPERTS, WIDE, 64), (EXPERTS, 64, WIDE), (EXPERTS, 64)
    sizes = {"gate_exps": up, "up_exps": up, "down_exps": down, "gate_inp": router}
    for i in range(2):
        for name, shape in sizes.items():
            values = rng.standard_normal(shape).astype(np.float32)
            kind = "F32" if name == "gate_inp" else "Q4_0"
            made = TensorData.quantized(values.reshape(-1, shape[-1]), kind)
            tensors[f"blk.{i}.ffn_{name}.weight"] = TensorData(shape, kind, made.data)
    return {**file.metadata, **more}, tensors


def fused(tensors: Tensors) -> Tensors:
    """Gates above ups in each matrix of one stack."""
    found = dict(tensors)
    for i in range(2):
        start = f"blk.{i}.ffn_"
        gate, up = (found.pop(f"{start}{name}_exps.weight") for name in ("gate", "up"))
        parts = [np.frombuffer(one.data, np.uint8).reshape(EXPERTS, -1) for one in (gate, up)]
        shape = (EXPERTS, 2 * WIDE, gate.shape[2])
        data = np.concatenate(parts, axis=1).tobytes()
        found[f"{start}gate_up_exps.weight"] = TensorData(shape, gate.kind, data)
    return found


def alone(tensors: Tensors) -> Tensors:
    """A tensor for each expert."""
    found = {}
    for name, one in tensors.items():
        if "_exps" not in name:
            found[name] = one
            continue
        data = np.frombuffer(one.data, np.uint8).reshape(EXPERTS, -1)
        for i in range(EXPERTS):
            part = TensorData(one.shape[1:], one.kind, data[i].tobytes())
            found[name.replace("_exps.weight", f".{i}.weight")] = part
    return found


def written(path: Path, metadata: Mapping[str, Value], tensors: Tensors) -> GGUFModel:
    write_gguf(path, metadata, tensors)
    return GGUFModel.open(path)


@pytest.mark.parametrize("change", [fused, alone])
@pytest.mark.parametrize("kernels", ["portable", "reference"])
def test_the_same_weights(
    tmp_path: Path, stacked: tuple[Mapping[str, Value], Tensors], change: object, kernels: str
) -> None:
    assert callable(change)
    metadata, tensors = stacked
    packed = []
    for name, some in {"stacked": tensors, "changed": change(tensors)}.items():
        model, folder = written(tmp_path / f"{name}.gguf", metadata, some), tmp_path / name
        folder.mkdir()
        pack_weights(model.plan(), backend_of(kernels), model.tensors, folder, lambda _: None)
        packed.append(((folder / "params.json").read_text(), (folder / "params.bin").read_bytes()))
    assert packed[0] == packed[1]


@pytest.mark.parametrize("change", [fused, alone])
def test_converted_they_are_stacks(
    tmp_path: Path, stacked: tuple[Mapping[str, Value], Tensors], change: object
) -> None:
    assert callable(change)
    metadata, tensors = stacked
    model = written(tmp_path / "changed.gguf", metadata, change(tensors))
    convert_weight(model, "q8_0", tmp_path / "new.gguf", no_progress)
    kinds = {name: one.kind for name, one in GGUFFile.open(tmp_path / "new.gguf").tensors.items()}
    assert set(kinds) == set(tensors)
    assert {kind for name, kind in kinds.items() if "_exps" in name} == {"Q8_0"}


def test_what_does_not_fit_is_named(
    tmp_path: Path, stacked: tuple[Mapping[str, Value], Tensors]
) -> None:
    metadata, tensors = stacked
    name = "blk.1.ffn_gate.1.weight"
    lacking = alone(tensors)
    old = lacking.pop(name)
    half = TensorData((32, 64), "Q4_0", old.data[: len(old.data) // 2])
    both = "blk.0.ffn_gate_up_exps.weight"
    odd, short = (TensorData((3, rows, 64), "F32", bytes(768 * rows)) for rows in (1, 2))
    cases: dict[str, tuple[Tensors, str]] = {
        "lacking": (lacking, f"there is no tensor {name}"),
        "other": (alone(tensors) | {name: half}, f"{name} is Q4_0 of shape"),
        "odd": (fused(tensors) | {both: odd}, f"{both} has shape"),
        "short": (fused(tensors) | {both: short}, "blk.0.ffn_gate_exps.weight has shape"),
    }
    for case, (some, words) in cases.items():
        model = written(tmp_path / f"{case}.gguf", metadata, some)
        with pytest.raises((ModelFileError, UnsupportedModel), match=words):
            model.plan()
