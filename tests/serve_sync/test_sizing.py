"""The size of a model by its header alone, against what packing really writes."""

from __future__ import annotations

import json

import pytest
from tiny_models import VARIANTS, TinyModels

from mlc_llm.compiler.weights import plan_model
from mlc_llm.kernels.isa import ISAS
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_lib import INDEX_FILE
from mlc_llm.serve.sizing import packed_bytes


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("sized"))


@pytest.mark.parametrize("isa", ["vnni", "portable"])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_packed_size_is_exact(tiny_models: TinyModels, name: str, isa: str) -> None:
    file = GGUFFile.open(tiny_models.path(name))
    plan = plan_model(file.metadata, file.tensors, ISAS[isa])
    index = json.loads((tiny_models.weights(name, isa) / INDEX_FILE).read_text())
    assert packed_bytes(plan, file.tensors) == index["size"]
