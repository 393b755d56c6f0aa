"""Greedy text of engines for random small models of Transformers: what Transformers says, in every
way that an engine computes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from converted import converted, needs_converter
from same_text import PROMPTS, Answers, alone, check_same_text, check_same_text_in_a_window

pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytest.importorskip("torch", reason="the oracle extra is not installed")

from dense_models import fields_of
from models_page import lacking
from random_models import granite_hybrid, random_of
from small_models import VARIED, exact_logits
from tiny_folders import tokenizer_files

from mlc_llm.json_file import read_json_object
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.models.registry import ROWS, Architecture

MIXED = (
    "Gemma4ForCausalLM", "GptOssForCausalLM", "GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM",
    "Phi3ForCausalLM", "Qwen2MoeForCausalLM",
)  # fmt: skip
"""Classes with experts, states, windows, sinks, shared keys and values, long positions."""
pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
        yield


@pytest.mark.parametrize("row", ROWS, ids=[row.config for row in ROWS])
def test_the_same_greedy_text_in_every_way(tmp_path: Path, row: Architecture) -> None:
    check_every_way(random_of(row.config), tmp_path)


@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_other_models_with_state_spaces(tmp_path: Path, kind: str, seed: int) -> None:
    check_every_way(granite_hybrid(kind, seed), tmp_path)


@pytest.mark.parametrize("config", MIXED)
def test_kernels_of_this_machine_say_the_same_in_every_way(tmp_path: Path, config: str) -> None:
    model = random_of(config)
    path = converted(model, tmp_path / "folder", **fields_of(model))
    check_same_text(path, None, tmp_path, alone(path, None))


def check_every_way(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    path = converted(model, folder, **fields_of(model))
    kernels = "portable"
    if lacking(read_json_object(folder / "config.json", 1 << 20)):
        kernels = "reference"
    expected = alone(path, kernels)
    assert expected == of_transformers(model, expected)
    assert len(set().union(*expected)) >= 2 * VARIED  # one answer alone may repeat itself
    check_same_text(path, kernels, tmp_path, expected)
    plan = GGUFModel.open(path).plan()
    scales = any(one.query_scaling for one in plan.spec.attention_layers.values())
    if not (plan.spec.learned_positions or plan.spec.recurrent_layers or scales):
        check_same_text_in_a_window(path, kernels, expected)
    path.unlink()
    for name, text in tokenizer_files().items():
        (folder / name).write_text(text, encoding="utf-8")
    assert alone(folder, kernels) == expected, "from the Hugging Face folder"


def of_transformers(model: object, answers: Answers) -> Answers:
    """The likeliest token behind each prompt and behind each token of its answer but the last."""
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        best = exact_logits(model, prompt + answer).argmax(axis=1).tolist()
        found.append(best[len(prompt) - 1 : -1])
    return found
