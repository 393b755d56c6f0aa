"""A cache and a server for tests of models of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_cache import WEIGHTS
from hub_server import Hub, serving

from mlc_llm.support import hub as protocol
from mlc_llm.support import hub_download


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder; no waits, small pieces, and no settings of this machine."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("MLC_LLM_QUIET", "1")
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_download, "WAIT_S", 0.0)
    monkeypatch.setattr(hub_download, "PIECE", 4096)
    protocol._opener.cache_clear()
    yield tmp_path / "cache"
    protocol._opener.cache_clear()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub({"generation_config.json": b"{}", "m.gguf": WEIGHTS})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
