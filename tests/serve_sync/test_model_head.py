"""What is kept of a header: the same model comes of it, and only while the file is the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc_llm.serve.model_args import open_model
from mlc_llm.serve.model_head import kept_head
from mlc_llm.support.files import cache_root
from mlc_llm.testing.tiny_model import write_tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    write_tiny_model(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_model_opened_again_is_the_same(model: Path) -> None:
    assert kept_head(model) is None
    first = open_model(str(model))
    head = kept_head(model)
    assert head is not None and first.gguf is not None and head.passed == first.gguf.passed
    again = open_model(str(model))
    assert again.gguf is not None
    assert dict(again.gguf.metadata) == dict(first.gguf.metadata)
    assert again.gguf.tensors.keys() == first.gguf.tensors.keys()
    assert again.tokenizer.encode("hello é") == first.tokenizer.encode("hello é")
    assert again.stop_token_ids == first.stop_token_ids


def test_another_file_or_a_damaged_note_is_read_anew(model: Path) -> None:
    open_model(str(model))
    (note,) = (cache_root() / "kept").iterdir()
    note.write_bytes(note.read_bytes()[:-1] + b"!")
    assert kept_head(model) is None
    open_model(str(model))
    assert kept_head(model) is not None
    os.utime(model, ns=(1, 1))
    assert kept_head(model) is None
