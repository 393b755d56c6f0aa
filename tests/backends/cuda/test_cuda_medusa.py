"""Medusa heads through the CUDA backend, on the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from draft_programs import drafts, medusa_texts
from emulated_models import ARCH, emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from tiny_heads import TinyMedusa
from tiny_models import TinyModels

from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.medusa import open_medusa
from mlc_llm.models.registry import read_gguf

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")


@pytest.mark.slow
def test_each_head_drafts_what_numpy_does(fake: dict[str, str], tmp_path: Path) -> None:
    heads = TinyMedusa(blocks=2, heads=2, prefix="medusa_head.")
    files, weights = open_medusa(heads.write(tmp_path / "heads")), tmp_path / "weights"
    weights.mkdir()
    backend = named_backend("cuda", arch=ARCH)
    pack_weights(files.plan(), backend, files.tensors, weights, lambda _: None)
    hidden = np.random.default_rng(5).standard_normal((7, heads.hidden)).astype(np.float32)
    np.save(tmp_path / "hidden.npy", hidden)
    library = emulated_library(files.plan())
    said = run_in_fake(fake, drafts, str(library), str(weights), str(tmp_path / "hidden.npy"))
    for head, found in enumerate(json.loads(said)):
        logits = heads.logits(head, hidden)
        logprobs = logits.max(1) - np.log(np.exp(logits).sum(1))
        assert [token for token, _ in found] == logits.argmax(1).tolist()
        np.testing.assert_allclose([one for _, one in found], logprobs, atol=1e-4)


def draft_always(heads: TinyMedusa, token: int) -> None:
    """Let all heads draft one token."""
    for name, values in heads.tensors.items():
        values[:] = 50.0 if name.endswith("bias") else 0.0
        if values.shape == (heads.vocab, heads.hidden):
            values[token] = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("always", [25, None])
def test_an_engine_writes_the_same_with_heads(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, always: int | None
) -> None:
    """One set of heads drafts at random, the other one a token that the model likes."""
    file = GGUFFile.open(tiny_models.path("plain"))
    plan = read_gguf(file.metadata, file.tensors)
    heads = TinyMedusa(vocab=plan.spec.vocab)
    if always is not None:
        draft_always(heads, always)
    folder = heads.write(tmp_path / "heads")
    libraries = emulated_library(plan), emulated_library(open_medusa(folder).plan())
    arguments = tiny_models.path("plain"), libraries[0], folder, libraries[1]
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, medusa_texts, *map(str, arguments), **settings)
    wanted, found, (drafted, accepted), alive = json.loads(said.splitlines()[-1])
    assert found == wanted
    assert drafted > 100 and (always is None or accepted > 3), (drafted, accepted)
    assert not any(alive)
