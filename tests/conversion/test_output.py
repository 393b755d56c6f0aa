"""Where a command writes: odd places, and names as long as a system allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc_llm.conversion.output import check_free, new_file, new_output
from mlc_llm.errors import UserError

LONGEST = 255
"""Bytes of a name."""


@pytest.mark.parametrize("letter", ["x", "é", "🌙"])
def test_a_name_may_be_as_long_as_the_system_allows(letter: str, tmp_path: Path) -> None:
    name = letter * (LONGEST // len(letter.encode()))
    with new_output(tmp_path / name) as folder:
        (folder / "a").write_text("b")
    assert (tmp_path / name / "a").read_text() == "b"
    (tmp_path / "more").mkdir()
    with new_file(tmp_path / "more" / name) as file:
        file.write_text("c")
    assert [one.name for one in (tmp_path / "more").iterdir()] == [name]


def test_a_longer_name_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the output .*x cannot be made: File name too long"):
        check_free(tmp_path / ("x" * 256))


def test_a_folder_that_was_removed_while_the_command_stands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    words = "the output out cannot be made: No such file or directory"
    with pytest.raises(UserError, match=words), new_output(Path("out")):
        pass
    with pytest.raises(UserError, match=words), new_file(Path("out")):
        pass
    os.chdir(tmp_path)
