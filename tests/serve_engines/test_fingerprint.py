"""`system_fingerprint`: a name for all that decides an answer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlc_llm import MLCEngine
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.opening import fingerprint as made
from mlc_llm.testing.tiny_model import write_tiny_model

TALK: Any = [{"role": "user", "content": "hi"}]


def mark_of(engine: MLCEngine) -> str:
    model: ChatModel = engine._client.model
    assert len(model.fingerprint) == 19 and model.fingerprint.startswith("fp_")
    return model.fingerprint


def test_every_answer_has_it(engine: MLCEngine) -> None:
    create, complete = engine.chat.completions.create, engine.completions.create
    answers: list[Any] = [create(messages=TALK), complete(prompt="a")]
    answers += create(messages=TALK, stream=True)  # type: ignore[arg-type]
    answers += complete(prompt="a", stream=True)  # type: ignore[arg-type]
    assert len(answers) > 4
    assert {one.system_fingerprint for one in answers} == {mark_of(engine)}


def test_the_same_model_has_the_same_one(model: MLCEngine, tiny: Path, tmp_path: Path) -> None:
    """Wherever the file lies, and whatever is only about speed and room."""
    first = mark_of(model)
    shutil.copy(tiny, tmp_path / "other.gguf")
    config = {"max_num_sequence": 2, "max_total_sequence_length": 1024, "prefill_chunk_size": 64}
    with MLCEngine(str(tmp_path / "other.gguf"), engine_config=config) as other:
        assert mark_of(other) == first
    model.reload()
    assert mark_of(model) == first


def test_other_weights_have_another_one(model: MLCEngine, tmp_path: Path) -> None:
    """The shape is the same, and so is the compiled code."""
    path = write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F32"}, seed=1)
    with MLCEngine(str(path), engine_config={"max_total_sequence_length": 512}) as other:
        assert mark_of(other) != mark_of(model)


@pytest.mark.parametrize(
    "more", [{"max_single_sequence_length": 100}, {"precision": "fast-prompts"}]
)
def test_settings_that_change_texts_change_it(model: MLCEngine, more: dict[str, Any]) -> None:
    loaded = model._client._engine.loaded
    config = replace(loaded.config, **more)
    assert made.fingerprint(loaded.bundle, config, loaded.runners) != mark_of(model)


def test_defaults_and_other_code_change_it(
    model: MLCEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model._client._engine.loaded
    bundle = replace(loaded.bundle, defaults=GenerationConfig(temperature=0.25))
    assert made.fingerprint(bundle, loaded.config, loaded.runners) != mark_of(model)
    monkeypatch.setattr(made, "source_hash", lambda folders: "another")
    assert made.fingerprint(loaded.bundle, loaded.config, loaded.runners) != mark_of(model)
