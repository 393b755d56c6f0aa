"""Kept files: given back for the same key, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc_llm.support.kept import UNUSED_S, keep, kept, key_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    return tmp_path


def file_in(home: Path) -> Path:
    (file,) = (home / "kept").iterdir()
    return file


def test_what_was_kept_comes_back_until_its_key_changes() -> None:
    key = key_of("size", 1)
    assert kept("name", key) is None
    keep("name", key, b"data", "a thing")
    assert kept("name", key) == b"data"
    assert kept("name", key_of("size", 2)) is None
    assert kept("other", key) is None
    keep("name", key_of("size", 2), b"", "a thing")
    assert kept("name", key_of("size", 2)) == b"" and kept("name", key) is None


def test_any_byte_flipped_or_cut_off_is_noticed(home: Path) -> None:
    key = key_of(1)
    keep("name", key, b"some data", "a thing")
    raw = file_in(home).read_bytes()
    for at in range(len(raw)):
        file_in(home).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert kept("name", key) is None, f"byte {at}"
        file_in(home).write_bytes(raw[:at])
        assert kept("name", key) is None, f"{at} bytes"


def test_a_cache_that_cannot_be_written_is_no_error(home: Path) -> None:
    (home / "kept").write_text("a file in the way")
    keep("name", key_of(1), b"data", "a thing")
    assert kept("name", key_of(1)) is None


def test_what_nobody_reads_goes(home: Path) -> None:
    keep("old", key_of(1), b"data", "a thing")
    os.utime(file_in(home), (0, 0))
    assert os.stat(home).st_mtime > UNUSED_S
    keep("new", key_of(1), b"data", "a thing")
    assert kept("old", key_of(1)) is None and kept("new", key_of(1)) == b"data"
