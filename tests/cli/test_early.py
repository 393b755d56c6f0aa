"""Which weights a command begins to read before it opens a model: those that the engine needs."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from mlc_llm.backends.registry import choose_backend
from mlc_llm.cli import early, opening
from mlc_llm.cli.__main__ import main
from mlc_llm.cli.guard import USER_ERROR
from mlc_llm.compiler.jit import packed_weights
from mlc_llm.compiler.keys import known_weights
from mlc_llm.errors import UserError
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.runtime.packed_file import ReadWeights, map_packed
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.support import content
from mlc_llm.testing.tiny_model import write_tiny_model


def test_a_command_reads_what_the_engine_will_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    model = tmp_path / "model.gguf"
    write_tiny_model(model)
    begun: list[Path] = []
    reading = ReadAhead()
    monkeypatch.setattr(reading, "begin", lambda folder, free: begun.append(folder))
    for name in (str(model), str(tmp_path), str(tmp_path / "nothing"), "HF://user/repo"):
        early.begin_early(reading, name)
    assert begun == []
    assert known_weights(model, choose_backend()) is None, "nobody has read the file yet"
    monkeypatch.setattr(content, "SETTLED_S", -1e9)
    content.content_of(model)
    folder = known_weights(model, choose_backend())
    assert folder is not None
    folder.mkdir(parents=True)
    for file in (PARAMS_FILE, INDEX_FILE):
        (folder / file).write_bytes(b"x")
    early.begin_early(reading, str(model))
    assert begun == [folder] == [packed_weights(GGUFModel.open(model))]


@pytest.mark.parametrize(("words", "read"), [(["generate", "x"], map_packed), (["chat"], None)])
def test_a_command_of_one_answer_maps_its_weights(
    words: list[str], read: ReadWeights | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ReadWeights | None] = []

    def made(given: ReadWeights | None) -> ReadAhead:
        asked.append(given)
        raise UserError("enough")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setattr(opening, "ReadAhead", made)
    assert main(words) == USER_ERROR
    assert asked == [read]
