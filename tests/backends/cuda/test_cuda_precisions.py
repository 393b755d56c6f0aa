"""Models that are computed less exactly through the CUDA backend, on the emulator, beside exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_models import emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from model_programs import rounded_logits, rows
from tiny_models import TinyModels

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.precision import Precision

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")
LARGEST_KL = 1e-5
"""Mean divergence of the tokens from those of `exact`. A float16 has 11 bits."""


class Model:
    """The model "plain", computed on the emulator."""

    def __init__(self, models: TinyModels, fake: dict[str, str], folder: Path) -> None:
        self._fake, self._folder = fake, folder
        self._weights = models.weights("plain", "cuda")
        file = GGUFFile.open(models.path("plain"))
        self._plan = read_gguf(file.metadata, file.tensors)

    def logits(self, precision: Precision, arch: str) -> np.ndarray:
        out, library = self._folder / "logits.npy", emulated_library(self._plan, precision, arch)
        given = (str(library), str(self._weights), str(out), precision)
        settings = {"FAKE_CUDA_CAPABILITY": {"sm_80": 80, "sm_90a": 90}[arch]}
        run_in_fake(self._fake, rounded_logits, *given, **settings)
        return np.load(out)

    def check_rows(self, precision: Precision) -> None:
        library = emulated_library(self._plan, precision)
        run_in_fake(self._fake, rows, str(library), str(self._weights), precision)


@pytest.fixture
def model(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path) -> Model:
    return Model(tiny_models, fake, tmp_path)


def divergence(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """KL of each token."""

    def log_probabilities(logits: np.ndarray) -> np.ndarray:
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))

    first, second = log_probabilities(exact), log_probabilities(found)
    return (np.exp(first) * (first - second)).sum(axis=1)


@pytest.mark.parametrize(
    ("precision", "arch"),
    [
        ("fast", "sm_90a"),
        ("fast-prompts", "sm_90a"),
        ("fast-prompts", "sm_80"),
    ],
)
@pytest.mark.slow
def test_near_the_exact_logits_and_not_equal(model: Model, precision: Precision, arch: str) -> None:
    """And with the same bits in steps of any size."""
    found, exact = model.logits(precision, arch), model.logits("exact", "sm_90a")
    assert (found != exact).any(axis=1).all()
    mean = divergence(exact, found).mean()
    print(f"KL {mean:.1e}, largest difference {np.abs(found - exact).max():.1e}")
    assert 0 < mean <= LARGEST_KL


@pytest.mark.slow
def test_a_row_does_not_depend_on_others(model: Model) -> None:
    model.check_rows("fast")
