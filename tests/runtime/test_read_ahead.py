"""Parameters that are read on a thread: once, with their errors, and never kept for nobody."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from mlc_llm.runtime import read_ahead
from mlc_llm.runtime.packed_file import BrokenParams, Packed

FOLDER = Path("weights")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were read, each giving a size of its own."""
    seen: list[Path] = []

    def read(folder: Path) -> Packed:
        seen.append(folder)
        if folder.name == "broken":
            raise BrokenParams("damaged")
        return Packed(folder, mmap.mmap(-1, 1), [], len(seen))

    monkeypatch.setattr(read_ahead, "read_packed", read)
    return seen


def test_what_was_begun_is_read_once(reads: list[Path]) -> None:
    read_ahead.begin_reading(FOLDER)
    read_ahead.begin_reading(FOLDER)
    assert read_ahead.packed_of(FOLDER).size == 1
    assert reads == [FOLDER]
    assert read_ahead.packed_of(FOLDER).size == 2  # weights that were packed anew meanwhile


def test_an_error_comes_where_the_parameters_are_wanted(reads: list[Path]) -> None:
    broken = Path("broken")
    read_ahead.begin_reading(broken)
    with pytest.raises(BrokenParams, match="damaged"):
        read_ahead.packed_of(broken)
    assert reads == [broken]


def test_what_nobody_asked_for_is_forgotten(reads: list[Path]) -> None:
    other = Path("other")
    read_ahead.begin_reading(other)
    with pytest.raises(ZeroDivisionError), read_ahead.readings_dropped():
        read_ahead.begin_reading(FOLDER)
        1 / 0  # noqa: B018
    read_ahead.packed_of(FOLDER)
    read_ahead.packed_of(other)
    assert sorted(reads) == [other, FOLDER, FOLDER]
