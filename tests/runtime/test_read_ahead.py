"""Weights that are read on a thread: once, with their errors, and never kept for nobody."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.runtime import read_ahead
from mlc_llm.runtime.packed_file import BrokenParams, Packed
from mlc_llm.runtime.read_ahead import ReadAhead

SIZE = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "weights")


def folder_of(path: Path) -> Path:
    path.mkdir()
    (path / PARAMS_FILE).write_bytes(bytes(SIZE))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were read; each reading gives a size of its own."""
    seen: list[Path] = []

    def read(folder: Path) -> Packed:
        seen.append(folder)
        if folder.name == "broken":
            raise BrokenParams("damaged")
        return Packed(folder, mmap.mmap(-1, 1), [], len(seen))

    monkeypatch.setattr(read_ahead, "read_packed", read)
    return seen


def test_what_was_begun_is_read_once(folder: Path, reads: list[Path]) -> None:
    reading = ReadAhead()
    for _ in range(2):
        reading.begin(folder, 2 * SIZE)
    assert reading.take(folder).size == 1
    assert reads == [folder]
    assert reading.take(folder).size == 2  # weights that were packed anew meanwhile


def test_at_most_half_of_the_free_memory_is_filled(folder: Path, reads: list[Path]) -> None:
    reading = ReadAhead()
    reading.begin(folder, 2 * SIZE - 1)
    assert reads == []
    reading.begin(folder, 2 * SIZE)
    assert reading.take(folder).size == 1


def test_an_error_comes_where_the_weights_are_wanted(tmp_path: Path, reads: list[Path]) -> None:
    reading, broken = ReadAhead(), folder_of(tmp_path / "broken")
    reading.begin(broken, 2 * SIZE)
    with pytest.raises(BrokenParams, match="damaged"):
        reading.take(broken)
    assert reads == [broken]
    with pytest.raises(FileNotFoundError):
        reading.begin(tmp_path / "nothing", 2 * SIZE)


def test_what_nobody_has_taken_is_dropped(folder: Path, reads: list[Path]) -> None:
    with pytest.raises(ZeroDivisionError), ReadAhead() as reading:
        reading.begin(folder, 2 * SIZE)
        1 / 0  # noqa: B018
    reading.take(folder)
    assert reads == [folder, folder]


def test_nobody_else_has_what_was_begun(folder: Path, reads: list[Path]) -> None:
    reading, other = ReadAhead(), ReadAhead()
    reading.begin(folder, 2 * SIZE)
    other.take(folder)
    reading.take(folder)
    assert reads == [folder, folder]
