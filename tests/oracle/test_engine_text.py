"""Greedy text of engines for random small models of Transformers: what Transformers says, in every
way that an engine computes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from converted import converted, needs_converter
from same_text import PROMPTS, Answers, alone, check_same_text, check_same_text_in_a_window

pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

from dense_models import fields_of  # noqa: E402
from models_page import lacking  # noqa: E402
from random_models import random_of  # noqa: E402

from mlc_llm.json_file import read_json_object  # noqa: E402
from mlc_llm.model_files.gguf import GGUFModel  # noqa: E402
from mlc_llm.models.registry import ROWS, Architecture  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
        yield


@pytest.mark.parametrize("row", ROWS, ids=[row.config for row in ROWS])
def test_the_same_greedy_text_in_every_way(tmp_path: Path, row: Architecture) -> None:
    model = random_of(row.config)
    path = converted(model, tmp_path, **fields_of(model))
    kernels = "portable"
    if lacking(read_json_object(tmp_path / "config.json", 1 << 20)):
        kernels = "reference"
    expected = alone(path, kernels)
    assert expected == of_transformers(model, expected)
    check_same_text(path, kernels, tmp_path, expected)
    plan = GGUFModel.open(path).plan()
    scales = any(one.query_scaling for one in plan.spec.attention_layers.values())
    if not (plan.spec.learned_positions or plan.spec.recurrent_layers or scales):
        check_same_text_in_a_window(path, kernels, expected)


def of_transformers(model: object, answers: Answers) -> Answers:
    """The likeliest token behind each prompt and behind each token of its answer but the last."""
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0]  # type: ignore[operator]
        found.append(logits.argmax(dim=1).tolist()[len(prompt) - 1 : -1])
    return found
