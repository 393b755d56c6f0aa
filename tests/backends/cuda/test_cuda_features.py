"""Models with one feature each through the CUDA backend, on the emulator, beside the reference."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_models import ARCH, emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from model_programs import TOKENS, logits

from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_config
from mlc_llm.models.weight_plan import WeightPlan, plan_weights, wanted_tensors
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

import test_falcon_h1
import test_layer_features as features
import test_lfm2
import test_mamba2
import test_qwen3_next
from architecture_tools import relative_error, runner_of_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels"),
]
WORST = 5e-3
"""As of CPU kernels with keys and values of float16."""
OF_LAYERS = (
    "learned sinks beside a window", "norms of values", "keys as values before their norm",
    "queries with norms, and keys of another layer", "inputs by token",
    "experts in blocks of microscaled floats", "clamped experts with biases",
    "experts, and a shared one with a gate", "experts chosen by sigmoids and learned numbers",
)  # fmt: skip
OF_MODELS: dict[str, dict[str, Any]] = {
    "state spaces alone": test_mamba2.CONFIG,
    "state spaces beside attention": {**test_falcon_h1.CONFIG, "mamba_rms_norm": True},
    "gated delta rules, gates of attention and experts": test_qwen3_next.CONFIG,
}


def random_model(folder: Path, config: Mapping[str, Any]) -> tuple[GGUFFile, WeightPlan]:
    """A file with the tensors that a config asks for, and its plan."""
    spec, rng, tensors = read_config(dict(config)), np.random.default_rng(0), {}
    for name, shape in wanted_tensors(spec).items():
        values = rng.standard_normal(shape) * (1.5 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2)
        if name.endswith("norm.weight"):
            values = values + 1
        if "ssm_a" in name and "alpha" not in name:
            values = -np.exp(rng.standard_normal(shape))
        tensors[name] = TensorData.quantized(values.astype(np.float32), "F32")
    write_gguf(folder / "model.gguf", {"general.architecture": spec.architecture}, tensors)
    file = GGUFFile.open(folder / "model.gguf")
    return file, plan_weights(spec, file.tensors)


def packed(plan: WeightPlan, file: GGUFFile, folder: Path) -> Path:
    """The folder of a model's weights, as GPUs read them."""
    weights = folder / "cuda-weights"
    weights.mkdir()
    pack_weights(plan, named_backend("cuda", arch=ARCH), file.tensors, weights, lambda _: None)
    return weights


def check(fake: dict[str, str], folder: Path, file: GGUFFile, plan: WeightPlan) -> None:
    """Steps of any size give the same bits, close to those of the reference."""
    weights, out = packed(plan, file, folder), folder / "logits.npy"
    run_in_fake(fake, logits, str(emulated_library(plan)), str(weights), str(out))
    exact = runner_of_plan(plan, file.tensors, folder, "reference").logits(TOKENS)
    error = relative_error(np.load(out), exact)
    print(f"error {error:.1e}")
    assert error <= WORST


@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_feature_of_layers(fake: dict[str, str], tmp_path: Path, name: str) -> None:
    _, file, plan = features.planned(tmp_path, features.CASES[name])
    check(fake, tmp_path, file, plan)


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_mixer_with_a_state(fake: dict[str, str], tmp_path: Path, name: str) -> None:
    check(fake, tmp_path, *random_model(tmp_path, OF_MODELS[name]))


def test_short_convolutions(fake: dict[str, str], tmp_path: Path) -> None:
    from mlc_llm.models.registry import read_gguf

    file = GGUFFile.open(test_lfm2.write_model(tmp_path / "model.gguf"))
    check(fake, tmp_path, file, read_gguf(file.metadata, file.tensors))
