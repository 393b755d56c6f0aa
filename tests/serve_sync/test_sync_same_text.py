"""Greedy text in every way an engine computes it, for tiny models of some architectures. All others
are in tests/oracle/test_engine_text.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from same_text import alone, check_same_text, check_same_text_in_a_window

from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SHAPES = {
    "llama": TinyShape(tied_head=False),
    "qwen3": TinyShape("qwen3", head_norms=True),
    "gemma3": TinyShape(
        "gemma3", layers=6, head_norms=True, post_norms=True, window=24, tied_head=False
    ),
}


@pytest.fixture(scope="module", params=SHAPES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(folder / "cache"))
        yield write_tiny_model(folder / "model.gguf", shape=SHAPES[request.param])


@pytest.mark.one_of(9)
def test_the_same_greedy_text_in_every_way(model: Path, tmp_path: Path) -> None:
    check_same_text(model, None, tmp_path, alone(model, None))


@pytest.mark.one_of(3)
def test_the_same_greedy_text_in_a_window(model: Path) -> None:
    check_same_text_in_a_window(model, None, alone(model, None))
