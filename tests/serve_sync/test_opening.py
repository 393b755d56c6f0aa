"""How an engine opens: weights are read ahead, once, and whoever began to read them has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import MLCError, UnsupportedModel
from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.runtime import packed_file, read_ahead
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening import runner
from mlc_llm.serve.opening.open_engine import open_engine
from mlc_llm.serve.sync_engine import SyncMLCEngine


class Begun(ReadAhead):
    """Notes what is begun; reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Path, int]] = []

    def begin(self, folder: Path, free: int) -> None:
        self.found.append((folder, free))
        (folder / PARAMS_FILE).stat()


def packed(monkeypatch: pytest.MonkeyPatch, answer: Path | MLCError | None) -> Any:
    def look(file: Any, kernels: str | None) -> Path | None:
        if isinstance(answer, MLCError):
            raise answer
        return answer

    monkeypatch.setattr(runner, "packed_weights", look)
    return object()


def test_weights_that_are_there_are_read_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / PARAMS_FILE).write_bytes(bytes(1000))
    reading = Begun()
    runner.begin_weights(reading, packed(monkeypatch, tmp_path), 999, None)
    assert reading.found == [(tmp_path, 999)]


@pytest.mark.parametrize("answer", [None, UnsupportedModel("of another kind"), Path("not there")])
def test_what_is_wrong_is_left_to_who_opens_the_model(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Begun()
    runner.begin_weights(reading, packed(monkeypatch, answer), 10**9, None)
    assert [folder for folder, _ in reading.found] == [answer] * isinstance(answer, Path)


@pytest.fixture
def reads(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of weights that engines read; the tiny model's are in the cache."""
    open_engine(EngineConfig(model=str(tiny)), "auto")
    seen: list[Path] = []

    def read(folder: Path) -> packed_file.Packed:
        seen.append(folder)
        return packed_file.read_packed(folder)

    monkeypatch.setattr(read_ahead, "read_packed", read)
    return seen


def test_weights_are_read_once_whoever_begins(tiny: Path, reads: list[Path]) -> None:
    open_engine(EngineConfig(model=str(tiny)), "auto")
    assert len(reads) == 1
    with ReadAhead() as reading:
        reading.begin(reads[0], 2**40)
        SyncMLCEngine(str(tiny), reading=reading)
        assert reads == 2 * reads[:1]
        reading.take(reads[0])
    assert len(reads) == 3, "the engine has taken what was begun"


def test_the_longest_sequence_is_what_limit_and_pages_allow(tiny: Path) -> None:
    """The last token is never computed, so it needs no page. A window needs three pages."""
    for config, longest in (
        (EngineConfig(max_single_sequence_length=40), 40),
        (EngineConfig(max_total_sequence_length=40), 48 + 1),
        (EngineConfig(max_total_sequence_length=32, sliding_window_size=8), 32 + 1),
        (EngineConfig(max_total_sequence_length=48, sliding_window_size=8), 2**24),
    ):
        engine = SyncMLCEngine(str(tiny), engine_config=config)
        assert engine.longest_sequence == longest
