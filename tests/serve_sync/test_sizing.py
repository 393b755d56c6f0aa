"""The size of a model by its header alone, against what packing really writes."""

from __future__ import annotations

import json

import pytest
from tiny_models import VARIANTS, TinyModels

from mlc_llm.backends.registry import backend_of
from mlc_llm.library.metadata import INDEX_FILE
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.serve.opening.memory import packed_bytes


@pytest.mark.parametrize("isa", ["vnni", "portable"])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_packed_size_is_exact(tiny_models: TinyModels, name: str, isa: str) -> None:
    file = GGUFFile.open(tiny_models.path(name))
    plan = read_gguf(file.metadata, file.tensors)
    index = json.loads((tiny_models.weights(name, isa) / INDEX_FILE).read_text())
    assert packed_bytes(plan, backend_of(isa)) == index["size"]
