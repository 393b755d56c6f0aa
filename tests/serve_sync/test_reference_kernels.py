"""The reference kernels behind an engine: the same answers, and names that are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

PROMPTS = ["The sky is", "one two three four five six"]


def answers(tiny: Path, kernels: str, config: GenerationConfig) -> list[list[str]]:
    engine = SyncMLCEngine(str(tiny), engine_config=EngineConfig(kernels=kernels))
    texts, _ = engine.generate(PROMPTS, config)
    return list(texts)


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(max_tokens=24, temperature=0),
        GenerationConfig(max_tokens=24, temperature=1.2, seed=5, top_p=0.9),
        GenerationConfig(max_tokens=24, temperature=0.8, seed=5, top_k=7, min_p=0.02, n=2),
        GenerationConfig(max_tokens=24, seed=5, presence_penalty=1.0, logit_bias={65: -3.0}),
    ],
    ids=["greedy", "top_p", "top_k", "edits"],
)
def test_answers_equal_those_of_portable_kernels(tiny: Path, config: GenerationConfig) -> None:
    """Both compute in float32, so draws agree but where a sum ends within a rounding of a cut."""
    assert answers(tiny, "reference", config) == answers(tiny, "portable", config)


def test_an_unknown_name_is_refused_with_those_there_are(tiny: Path) -> None:
    with pytest.raises(InvalidField, match=r"kernels.*'quick'.*portable, cuda, reference"):
        SyncMLCEngine(str(tiny), engine_config=EngineConfig(kernels="quick"))


def test_the_reference_kernels_have_no_faster_way(tiny: Path) -> None:
    config = EngineConfig(kernels="reference", prompt_precision="fast")
    with pytest.raises(InvalidField, match=r"precision.*reference.*'exact'"):
        SyncMLCEngine(str(tiny), engine_config=config)
