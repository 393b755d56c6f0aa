"""Drafts for, and by, a model whose layers see a window: what is undone must not be gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eager_drafts import draft_always, opened
from tiny_eagle import TinyEagle

from mlc_llm.errors import RequestError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

pytestmark = pytest.mark.usefixtures("tiny")
WINDOW, MOST = 20, 8
PROMPTS = ["abcabcabcabd", "The cat " * 12, "x"]
CONFIG = GenerationConfig(temperature=1.0, seed=4, max_tokens=100)


class Opened:
    """An engine that drafts in every step it can, and the core inside it."""

    def __init__(self, model: Path, config: dict[str, Any]) -> None:
        whole = EngineConfig(kernels="portable", **config)
        self.engine, self.core = opened(str(model), whole)
        draft_always(self.core, MOST)

    def texts(self) -> list[list[list[str]]]:
        found = []
        for prompts in ([PROMPTS[0]], [PROMPTS[1]], PROMPTS):
            found.append(self.engine.generate(prompts, CONFIG)[0])
            self.core.check_integrity()
        return found

    def drafted(self) -> int:
        return sum(self.engine.metrics().metrics.get("spec_decode", {}).get("draft_count", []))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("windowed")
    shape = TinyShape(
        architecture="gemma3", layers=6, window=WINDOW, head_norms=True, post_norms=True
    )
    return {
        "model": write_tiny_model(folder / "model.gguf", shape=shape),
        "small_draft": write_tiny_model(folder / "other.gguf", shape=shape, seed=1),
        "eagle": TinyEagle(vocab=VOCABULARY_SIZE).write(folder / "eagle"),
    }


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> list[list[list[str]]]:
    return Opened(files["model"], {"speculative_mode": "disable"}).texts()


def drafting(files: dict[str, Path], mode: str) -> Opened:
    config = {"speculative_mode": mode, "additional_models": [str(files[mode])]}
    return Opened(files["model"], config)


@pytest.mark.parametrize("mode", ["eagle", "small_draft"])
def test_the_same_texts(files: dict[str, Path], expected: list[list[list[str]]], mode: str) -> None:
    opened = drafting(files, mode)
    assert opened.core._runner.limits.windows, "some layers have a window"
    assert opened.texts() == expected
    assert opened.drafted() > 100


def test_draft_tokens_that_stay_end_the_requests(
    files: dict[str, Path], expected: list[list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather no answer than a wrong one. What comes next is right again."""
    opened = drafting(files, "eagle")
    runner: Any = opened.core._runner
    roll_back = runner.rollback_sequence

    def refuse(seq_id: int, num_tokens: int) -> None:
        monkeypatch.setattr(runner, "rollback_sequence", roll_back)
        raise AssertionError("as a fault of ours")

    monkeypatch.setattr(runner, "rollback_sequence", refuse)
    with pytest.raises(RequestError, match="draft tokens stay in the pages"):
        opened.engine.generate([PROMPTS[0]], CONFIG)
    assert opened.texts() == expected
