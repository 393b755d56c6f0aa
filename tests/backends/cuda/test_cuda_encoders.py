"""Encoders through the CUDA backend, on the emulator, beside the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from emulated_models import ARCH, emulated_library
from emulation import COMPILER
from encoder_programs import computed, embeddings, texts_of, vectors
from fake_cuda import run_in_fake
from kept_libraries import build_kept
from tiny_encoders import CLS, SEP, TinyEncoder
from tiny_window_encoders import TinyWindowEncoder

from mlc_llm.backends.registry import backend_of, named_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.precision import Precision
from mlc_llm.runtime.encoder_runner import EncoderRunner
from mlc_llm.serve.opening.bundle import open_model

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")
LEAST = 0.99999
"""Cosine of a vector and the reference's."""
WORST = 5e-3
"""Of a score, as a part of the largest one."""
Array = npt.NDArray[np.float64]
AnyEncoder: TypeAlias = TinyEncoder | TinyWindowEncoder
CASES = {
    "modern-bert": TinyWindowEncoder("modern-bert", labels=1),
    "gemma-embedding": TinyWindowEncoder("gemma-embedding", window=40, projections=(96, 24)),
    "bert": TinyEncoder(labels=1),
    "nomic-bert": TinyEncoder("nomic-bert"),
}


def by_the_reference(plan: WeightPlan, file: GGUFFile, folder: Path) -> EncoderRunner:
    library, weights, backend = folder / "library", folder / "weights", backend_of("reference")
    library.mkdir(), weights.mkdir()
    build_kept(plan.spec, backend, library, quickest=True)
    pack_weights(plan, backend, file.tensors, weights, lambda _: None)
    return EncoderRunner(
        library, weights,
        pooling="mean", max_num_sequence=8, max_batch_tokens=320,
        context_window=plan.spec.context_window,
    )  # fmt: skip


def cosines(found: Array, exact: Array) -> Array:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    return np.asarray((found * exact).sum(axis=1) / lengths)


def check(
    fake: dict[str, str], folder: Path, encoder: AnyEncoder, least: float, precision: Precision
) -> None:
    """A text has the same bits alone and beside others."""
    file = GGUFFile.open(encoder.write(folder / "tiny.gguf"))
    plan, weights, out = read_gguf(file.metadata, file.tensors), folder / "cuda", folder / "o.npz"
    weights.mkdir()
    pack_weights(plan, named_backend("cuda", arch=ARCH), file.tensors, weights, lambda _: None)
    longest, paths = plan.spec.context_window, (emulated_library(plan, precision), weights, out)
    run_in_fake(fake, vectors, *map(str, paths), longest, precision)
    made, runner = np.load(out), by_the_reference(plan, file, folder)
    texts = texts_of(longest)
    near = cosines(made["vectors"], np.array(computed(runner, texts)))
    print(f"{encoder.architecture}: {1 - near.min():.1e} from the same direction")
    assert near.min() >= least
    if encoder.labels:
        scores = np.array(computed(runner, texts[1:], second_at=1))
        error = np.abs(made["scores"] - scores).max() / np.abs(scores).max()
        print(f"scores: {error:.1e}")
        assert error <= WORST


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_vectors(fake: dict[str, str], tmp_path: Path, name: str) -> None:
    check(fake, tmp_path, CASES[name], LEAST, "exact")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fast", "fast-prompts"])
def test_vectors_of_one_plane(fake: dict[str, str], tmp_path: Path, precision: Precision) -> None:
    """All texts are prompts, which `fast-prompts` multiplies by wgmma."""
    check(fake, tmp_path, CASES["nomic-bert"], 0.999, precision)


@pytest.mark.slow
def test_embeddings_of_an_engine(fake: dict[str, str], tmp_path: Path) -> None:
    """Of texts, by the public interface."""
    texts, encoder = (
        ("the cat sat on the mat", "a dog", "the dogs sleep, the cat sat."),
        TinyEncoder(),
    )
    path = encoder.write(tmp_path / "tiny.gguf")
    file = GGUFFile.open(path)
    library = emulated_library(read_gguf(file.metadata, file.tensors))
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, embeddings, str(path), str(library), *texts, **settings)
    alone, together, alive = json.loads(said.splitlines()[-1])
    assert alone == together and not any(alive)
    tokenizer = open_model(str(path)).tokenizer
    ids = [[CLS, *tokenizer.encode(one), SEP] for one in texts]
    exact = np.array([encoder.pooled(one) for one in ids])
    assert cosines(np.array(together), exact).min() >= LEAST
