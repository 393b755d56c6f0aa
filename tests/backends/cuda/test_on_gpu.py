"""Models on a real GPU (`--gpu`): logits beside those of the reference, bits, and a sanitizer.

Machines without a compiler run `benchmarks/gpu_check.py` instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TinyModels

from mlc_llm.backends.cuda import state
from mlc_llm.backends.cuda.driver import usable_gpu
from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.build import build_library
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.runtime.model_runner import ModelRunner

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpu_check import CHUNKED, logit_faults, row_faults, soak_faults, tokens_of  # noqa: E402

SANITIZER = shutil.which("compute-sanitizer")
NAMES = [
    "plain", "mixed-kinds", "keys-and-values-apart", "own-head", "floats", "float32", "bfloat16",
    "big-heads", "one-layer", "rope-factors",
]  # fmt: skip
SOAK_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def _has_gpu() -> None:
    if reason := state.why_not():
        pytest.skip(f"needs a GPU: {reason}")


def made(tiny_models: TinyModels, name: str, folder: Path) -> tuple[Path, Path]:
    """A library for this GPU, and weights."""
    file = GGUFFile.open(tiny_models.path(name))
    best = usable_gpu().architecture
    assert best is not None
    library = folder / name
    library.mkdir()
    build_library(
        read_gguf(file.metadata, file.tensors).spec, named_backend("cuda", arch=best.name), library
    )
    return library, tiny_models.weights(name, "cuda")


def runner_of(library: Path, weights: Path) -> ModelRunner:
    return ModelRunner(
        library, weights, num_pages=512, max_num_sequence=16, max_batch_tokens=64,
        context_window=512,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_models(tiny_models: TinyModels, tmp_path: Path, name: str) -> None:
    runner = runner_of(*made(tiny_models, name, tmp_path))
    exact = tiny_models.runner(name, "reference").logits(tokens_of(CHUNKED))
    assert not logit_faults(runner, exact)
    assert not row_faults(runner)
    runner.check_integrity()


@pytest.mark.gpu
def test_soak(tiny_models: TinyModels, tmp_path: Path) -> None:
    runner = runner_of(*made(tiny_models, "plain", tmp_path))
    assert not soak_faults(runner, SOAK_S)
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


@pytest.mark.gpu
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer of NVIDIA's toolkit")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_nothing_is_wrong_in_memory(tiny_models: TinyModels, tmp_path: Path, tool: str) -> None:
    library, weights = made(tiny_models, "one-layer", tmp_path)
    checks = tmp_path / "checks" / "tiny"
    (checks / "cuda").mkdir(parents=True)
    for name, target in (("library", library), ("weights", weights)):
        (checks / "cuda" / name).symlink_to(target)
    exact = tiny_models.runner("one-layer", "reference").logits(tokens_of(CHUNKED))
    np.save(checks / "logits.npy", exact)
    command = [str(SANITIZER), "--tool", tool, "--error-exitcode", "9", sys.executable]
    done = subprocess.run(
        [*command, str(BENCHMARKS / "gpu_check.py"), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=900, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
