"""How an engine reads packed weights ahead: only those that are there, and that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import MLCError, UnsupportedModel
from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.serve import open_engine


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    monkeypatch.setattr(open_engine, "begin_reading", found.append)
    return found


def packed(monkeypatch: pytest.MonkeyPatch, answer: Path | MLCError | None) -> Any:
    def look(file: Any, kernels: str | None) -> Path | None:
        if isinstance(answer, MLCError):
            raise answer
        return answer

    monkeypatch.setattr(open_engine, "packed_weights", look)
    return object()


def test_weights_are_read_ahead_where_they_fit(
    begun: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / PARAMS_FILE).write_bytes(bytes(1000))
    file = packed(monkeypatch, tmp_path)
    open_engine._read_ahead(file, 999, None)
    assert begun == []
    open_engine._read_ahead(file, 1000, None)
    assert begun == [tmp_path]


@pytest.mark.parametrize("answer", [None, UnsupportedModel("of another kind"), Path("not there")])
def test_what_is_wrong_is_left_to_who_opens_the_model(
    answer: Any, begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_engine._read_ahead(packed(monkeypatch, answer), 10**9, None)
    assert begun == []
