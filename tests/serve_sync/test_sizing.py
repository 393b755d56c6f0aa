"""The size of a model by its header alone, against what packing really writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kept_libraries import build_kept
from random_folders import CONFIGS, write_random
from tiny_encoders import TinyEncoder
from tiny_models import VARIANTS, TinyModels

from mlc_llm.backends.registry import backend_of
from mlc_llm.library.encoder_signatures import ENCODE
from mlc_llm.library.metadata import INDEX_FILE, METADATA_FILE, Metadata
from mlc_llm.library.signatures import FORWARD
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.memory import model_size, packed_bytes


@pytest.mark.parametrize("isa", ["vnni", "portable"])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_packed_size_is_exact(tiny_models: TinyModels, name: str, isa: str) -> None:
    file = GGUFFile.open(tiny_models.path(name))
    plan = read_gguf(file.metadata, file.tensors)
    index = json.loads((tiny_models.weights(name, isa) / INDEX_FILE).read_text())
    assert packed_bytes(plan, backend_of(isa)) == index["size"]


@pytest.mark.one_of(12)
@pytest.mark.parametrize("name", CONFIGS)
def test_activations_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """What a token takes between kernels: layers with states have most of it."""
    check_activations(write_random(tmp_path / "model", name), tmp_path / "library", FORWARD)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("architecture", ["bert", "nomic-bert"])
def test_activations_of_an_encoder(tmp_path: Path, architecture: str) -> None:
    path = TinyEncoder(architecture).write(tmp_path / "encoder.gguf")
    check_activations(path, tmp_path / "library", ENCODE)


def check_activations(model: Path, library: Path, function: str) -> None:
    """Of a token. library: a new folder."""
    bundle = open_model(str(model))
    assert bundle.files is not None
    library.mkdir()
    build_kept(bundle.files.plan().spec, backend_of("portable"), library)
    infos = Metadata.from_json((library / METADATA_FILE).read_text()).workspaces[function]
    real = sum(one.unit_bytes for one in infos if not one.of_rows)
    planned = model_size(bundle, "portable").activations(1, has_window=False)
    assert 0.93 * real <= planned <= 1.35 * real
