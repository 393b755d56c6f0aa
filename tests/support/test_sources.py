"""The hash of source files knows each file that decides what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlc_llm
from mlc_llm.compiler.keys import SHAPING_FOLDERS
from mlc_llm.support.sources import hash_of_sources


@pytest.mark.parametrize("name", ["inside/one.py", "two.ll"])
def test_other_contents_and_names_have_another_hash(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    for file in ("inside/one.py", "two.ll"):
        (folder / file).write_text("one")
    before = hash_of_sources(tmp_path, ["folder"])
    (folder / "notes.txt").write_text("is no source")
    assert hash_of_sources(tmp_path, ["folder"]) == before
    (folder / name).write_text("another")
    changed = hash_of_sources(tmp_path, ["folder"])
    (folder / name).rename((folder / name).with_stem("other"))
    assert len({before, changed, hash_of_sources(tmp_path, ["folder"])}) == 3


def test_every_file_that_shapes_a_library_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    package, read = Path(mlc_llm.__file__).parent, set[str]()

    def seen(name: str) -> bytes:
        read.add(name)
        return b""

    monkeypatch.setattr("mlc_llm.support.sources._read", seen)
    hash_of_sources(package, SHAPING_FOLDERS)
    files = {file for one in SHAPING_FOLDERS for file in (package / one).rglob("*.*")}
    assert read == {str(file) for file in files if file.suffix != ".pyc"}
