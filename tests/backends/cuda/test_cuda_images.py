"""Towers of images, and models that see, through the CUDA backend on the emulator, beside the
reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import image_programs
import kept
import numpy as np
import pytest
from emulated_models import ARCH, emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from image_programs import CHUNK, save_logits, seen_logits, texts, tower, vectors_of
from kept_libraries import build_kept
from model_programs import engine
from tiny_models import TinyModels

from mlc_llm.backends.registry import backend_of, named_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tower import TowerFiles, tower_of_gguf
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.runtime.image_runner import ImageRunner
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_eyes import write_tiny_eyes

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")
WORST = 3e-3
"""Of the largest number: keys and values are float16."""
LEAST = 0.99999
"""Cosine of a vector and the reference's."""


def tower_files(folder: Path, *, beside: bool) -> TowerFiles:
    """That of Gemma 3, or with vectors side by side, as SmolVLM has it."""
    file = GGUFFile.open(write_tiny_eyes(folder).mmproj)
    if not beside:
        return tower_of_gguf(file)
    tensors = {
        name: TensorData(one.shape, one.kind, bytes(np.array(one.data)))
        for name, one in file.tensors.items()
        if not name.startswith("mm.")
    }
    width, hidden = 64, file.tensors["v.post_ln.weight"].shape[0]
    matrix = np.random.default_rng(9).standard_normal((width, 4 * hidden)) / 16
    tensors["mm.model.fc.weight"] = TensorData.quantized(matrix.astype(np.float32), "F32")
    metadata = {**file.metadata, "clip.projector_type": "idefics3"}
    write_gguf(folder / "beside.gguf", metadata, tensors)
    return tower_of_gguf(GGUFFile.open(folder / "beside.gguf"))


def both(folder: Path, plan: WeightPlan, tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Library and weights of each backend."""
    folder.mkdir()
    found = {}
    for backend in (named_backend("cuda", arch=ARCH), backend_of("reference")):
        weights = folder / backend.name
        weights.mkdir()
        pack_weights(plan, backend, tensors, weights, lambda _: None)
        library = folder / "library"
        if backend.name == "cuda":
            library = emulated_library(plan)
        else:
            library.mkdir()
            build_kept(plan.spec, backend, library, quickest=True)
        found[backend.name] = [str(library), str(weights)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_vectors_of_a_tower(fake: dict[str, str], tmp_path: Path, beside: bool) -> None:
    files, out = tower_files(tmp_path, beside=beside), tmp_path / "out.npy"
    folders = both(tmp_path / "tower", files.plan(), files.tensors)
    sizes = files.vision.side**2, files.vision.patch_numbers
    run_in_fake(fake, tower, *folders["cuda"], str(out), *sizes)
    runner = ImageRunner(*map(Path, folders["reference"]))
    found, exact = np.load(out), vectors_of(runner, *sizes)
    error = np.abs(found - exact).max() / np.abs(exact).max()
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(exact, axis=-1)
    cosine = ((found * exact).sum(axis=-1) / lengths).min()
    print(f"error {error:.1e}, {1 - cosine:.1e} from the same direction")
    assert error <= WORST and cosine >= LEAST


@pytest.mark.slow
def test_logits_of_a_model_that_sees_what_is_before(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path
) -> None:
    """As SmolVLM: a token of an image sees the tokens before it."""
    files, file = tower_files(tmp_path, beside=True), GGUFFile.open(tiny_models.path("plain"))
    plan = read_gguf(file.metadata, file.tensors)
    plan = replace(plan, spec=replace(plan.spec, sight="before"))
    towers = both(tmp_path / "tower", files.plan(), files.tensors)
    models = both(tmp_path / "model", plan, file.tensors)
    sizes, out = (files.vision.side**2, files.vision.patch_numbers), tmp_path / "out.npy"
    run_in_fake(fake, save_logits, str(out), *sizes, *models["cuda"], *towers["cuda"])
    exact = seen_logits([*models["reference"], *towers["reference"]], *sizes)
    error = np.abs(np.load(out) - exact).max() / np.abs(exact).max()
    print(f"error {error:.1e}")
    assert error <= WORST


@pytest.mark.slow
def test_texts_of_an_engine_that_sees(fake: dict[str, str], tmp_path: Path) -> None:
    """Images in any order, in steps that are smaller than two of them."""
    pytest.importorskip("PIL", reason="the extra `images` is not installed")
    model, root = str(write_tiny_eyes(tmp_path).model), str(kept.folder("libraries").parent)
    settings = {"MLC_LLM_HOME": str(tmp_path / "home")}
    run_in_fake(fake, image_programs.opened, model, root, **settings)
    said = run_in_fake(fake, image_programs.print_texts, model, root, **settings)
    found, repeated, alive = json.loads(said.splitlines()[-1])
    alone, together = found
    assert alone == together and len({*alone}) == len(alone), "an image changes nothing"
    assert found == texts(engine(model, None, "cpu", kernels="reference", prefill_chunk_size=CHUNK))
    assert repeated >= 10, "steps without images are launched as graphs"
    assert not any(alive)
