"""Whole models with adapters, draft heads or pages of bytes through the CUDA backend, on the
emulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kept
import numpy as np
import pytest
from added_programs import adapted, drafted, of_bytes
from decoder_reference import ReferenceDecoder
from draft_programs import eagle_opened, eagle_texts
from emulated_models import ARCH, emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from model_programs import TOKENS
from tiny_eagle import TinyEagle
from tiny_models import TinyModels

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))

from test_adapted_models import HALF_WORST, NO_ADAPTER, adapters, expected
from test_eagle_head import HEADS, TEXT, agree

from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.eagle import open_eagle
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.runtime.batch import Sampled
from mlc_llm.serve.opening.bundle import open_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels"),
]


def plan_of(models: TinyModels) -> WeightPlan:
    file = GGUFFile.open(models.path("plain"))
    return read_gguf(file.metadata, file.tensors)


def test_adapters(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path) -> None:
    """Each of them is the merged model, also beside others in a step."""
    out, weights = tmp_path / "logits.npy", tiny_models.weights("plain", "cuda")
    paths = json.dumps([str(path) for path in adapters(tiny_models, "plain")])
    library = emulated_library(plan_of(tiny_models).with_adapters())
    model = tiny_models.path("plain")
    run_in_fake(fake, adapted, str(library), str(weights), str(model), paths, str(out))
    for found, slot in zip(np.load(out), (0, 1, NO_ADAPTER), strict=True):
        difference = np.abs(found - expected(tiny_models, "plain", slot)).max()
        print(f"adapter {slot}: {difference:.1e}")
        assert difference <= HALF_WORST


def test_pages_of_bytes(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path) -> None:
    """What is left beside the reference is what float16 leaves, and an element whose whole number
    is the neighbour of the other one's."""
    out, weights = tmp_path / "logits.npy", tiny_models.weights("plain", "cuda")
    library = emulated_library(plan_of(tiny_models), kv_cache="int8")
    run_in_fake(fake, of_bytes, str(library), str(weights), str(out))
    wanted = tiny_models.runner("plain", "reference", kv_cache="int8").logits(TOKENS)
    cost = np.abs(wanted - tiny_models.runner("plain", "reference").logits(TOKENS))
    mean = np.abs(np.load(out) - wanted).mean()
    print(f"difference {mean:.1e}, cost of bytes {cost.mean():.1e}")
    assert mean < 0.5 * cost.mean()


def test_an_engine_writes_the_same_with_an_eagle_head(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path
) -> None:
    head = TinyEagle(third=True).write(tmp_path / "head")
    model, root = tiny_models.path("plain"), kept.folder("libraries").parent
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    run_in_fake(fake, eagle_opened, str(model), str(head), str(root), **settings)
    arguments = model, emulated_library(plan_of(tiny_models)), head
    said = run_in_fake(fake, eagle_texts, *map(str, arguments), **settings)
    wanted, found, (count, _), alive = json.loads(said.splitlines()[-1])
    assert found == wanted
    assert count > 100
    assert not any(alive)


@pytest.mark.parametrize("name", ["first", "third"])
def test_an_eagle_head(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, name: str
) -> None:
    """It drafts what NumPy does, whatever the steps that have computed a text."""
    heads, weights = HEADS[name], tmp_path / "weights"
    model = open_model(str(tiny_models.path("plain"))).files
    assert model is not None
    files = open_eagle(heads.write(tmp_path / "head"), model)
    plan = files.plan()
    weights.mkdir()
    pack_weights(plan, named_backend("cuda", arch=ARCH), files.tensors, weights, lambda _: None)
    given = (str(emulated_library(plan)), str(weights), json.dumps(TEXT), 4)
    said = run_in_fake(fake, drafted, *given)
    found = [
        Sampled(token, top=[(one, value) for one, value in top])
        for token, top in json.loads(said.splitlines()[-1])
    ]
    wanted = heads.chain(ReferenceDecoder(tiny_models.path("plain")), TEXT, 4)
    print(f"largest difference {agree(found, wanted, 0.02):.1e}")
