"""A whole model of RWKV-7 through the CUDA backend, on the emulator, beside the reference."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated_models import emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from model_programs import TOKENS, logits, print_texts, texts
from test_cuda_features import packed

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

from architecture_tools import relative_error, runner_of
from rwkv7_reference import write_model

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels"),
]
WORST = 1e-5
"""States are float32: nothing is rounded to float16 for good."""


def library_of(path: Path) -> Path:
    file = GGUFFile.open(path)
    return emulated_library(read_gguf(file.metadata, file.tensors))


def test_logits(fake: dict[str, str], tmp_path: Path) -> None:
    """Steps of any size give the same bits, close to those of the reference."""
    path, out = write_model(tmp_path / "model.gguf"), tmp_path / "logits.npy"
    file = GGUFFile.open(path)
    weights = packed(read_gguf(file.metadata, file.tensors), file, tmp_path)
    run_in_fake(fake, logits, str(library_of(path)), str(weights), str(out))
    error = relative_error(np.load(out), runner_of(path, tmp_path, "reference").logits(TOKENS))
    print(f"error {error:.1e}")
    assert error <= WORST


def test_texts_of_an_engine(fake: dict[str, str], tmp_path: Path) -> None:
    """Greedy texts are those of the reference: one after the other, which finds states that were
    kept for the beginnings of prompts; together; and with prompts in parts."""
    model = write_model(tmp_path / "model.gguf")
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    given = (str(model), str(library_of(model)), "auto")
    found, alive = json.loads(run_in_fake(fake, print_texts, *given, **settings).splitlines()[-1])
    assert found == texts(str(model), None, "cpu", "reference")
    *alone, together, in_parts = found
    assert [one for (one,) in alone] == together == in_parts
    assert not any(alive), "something of an engine is still on the GPU"
