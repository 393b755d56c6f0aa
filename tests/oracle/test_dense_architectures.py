"""Random small models of Transformers, through its own folders and as llama.cpp's converter writes
them, against the reference kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_config, read_gguf

pytest.importorskip("torch", reason="the oracle extra is not installed")
pytest.importorskip("transformers", reason="the oracle extra is not installed")

from architecture_tools import relative_error, runner_of_folder
from converted import converted, needs_converter
from dense_models import CONTEXT, KINDS, SEEDS, fields_of, random_model
from small_models import HALF_WORST, WORST, check_reference, exact_logits, tokens_of

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
CPU_KERNELS = ("portable", None, "portable", None)
"""By seed; None is this machine's."""


@needs_converter
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    model = random_model(kind, seed)
    check_reference(converted(model, tmp_path, **fields_of(model)), tmp_path, model, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_kernels_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    """All chunk sizes give the same bits."""
    model, folder, kernels = random_model(kind, seed), tmp_path / "folder", CPU_KERNELS[seed]
    tokens = tokens_of(seed)
    model.save_pretrained(folder)
    runner = runner_of_folder(folder, tmp_path, kernels)
    whole = runner.logits(tokens)
    limit = HALF_WORST if kernels is None else WORST
    assert relative_error(whole, exact_logits(model, tokens)) <= limit
    for chunk in (7, 1):
        assert runner.logits(tokens, chunk=chunk).tobytes() == whole.tobytes(), chunk


@pytest.mark.parametrize("seed", [1, 3])
def test_short_texts_with_longrope(tmp_path: Path, seed: int) -> None:
    """Where no sequence may be longer than the first training's context, other factors hold."""
    model, folder = random_model("phi3", seed), tmp_path / "folder"
    tokens = np.random.default_rng(seed).integers(0, 256, CONTEXT).tolist()
    model.save_pretrained(folder)
    short = runner_of_folder(folder, tmp_path, "reference", context_window=CONTEXT)
    found = short.logits(tokens)
    assert relative_error(found, exact_logits(model, tokens)) <= WORST
    long = runner_of_folder(folder, tmp_path, "reference", context_window=CONTEXT + 1)
    assert relative_error(long.logits(tokens), exact_logits(model, tokens)) > 100 * WORST


@needs_converter
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_spec_from_config_equals_spec_from_gguf(tmp_path: Path, kind: str, seed: int) -> None:
    model = random_model(kind, seed)
    file = GGUFFile.open(converted(model, tmp_path, **fields_of(model)))
    expected = replace(read_gguf(file.metadata, file.tensors).spec, kinds={})
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for other in ("architectures", "model_type"):
        found = read_config({key: value for key, value in config.items() if key != other})
        assert as_in_gguf(found) == as_in_gguf(expected)


def as_in_gguf(spec: Any) -> Any:
    """With numbers as wide as those of GGUF, and without the lists that are tensors there."""
    ropes = tuple(
        replace(one, factors=None, long_factors=None, magnitude=float(np.float32(one.magnitude)))
        for one in spec.ropes
    )
    return replace(spec, norm_eps=float(np.float32(spec.norm_eps)), ropes=ropes)
