"""The tiny model, and a cache of compiled models apart from the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model and its library, which programs that tests start find compiled."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(folder / "cache"))
        SyncMLCEngine(str(write_tiny_model(folder / "tiny.gguf")), "cpu")
    return folder


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Iterator[Path]:
    """The model's file. Until the module ends, what is compiled lies beside it, so that it is
    compiled once for all modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tiny_folder / "cache"))
        yield tiny_folder / "tiny.gguf"
