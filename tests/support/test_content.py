"""A file's hash: that of all its bytes, and read again whenever it may have changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from mlc_llm.support import content
from mlc_llm.support.content import content_of, known_content

SIZE = 3_000_000
BETWEEN = 70_001
"""A byte of a file of that size which is in no sample."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(content, "SETTLED_S", -1e9)  # files of tests are all new
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(SIZE))
    return path


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def change(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1)
        file.seek(place)
        file.write(bytes([old[0] ^ 1]))


def test_the_hash_is_that_of_all_bytes_and_is_known_from_then_on(file: Path) -> None:
    assert known_content(file) is None
    found = content_of(file)
    assert found.hash == hash_of(file) and known_content(file) == found == content_of(file)


def test_a_known_file_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = content_of(file)

    def reads(*_: object) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(content, "_hash", reads)
    assert content_of(file) == found


@pytest.mark.parametrize("place", [0, BETWEEN, SIZE // 2 + 5000, SIZE - 1])
def test_a_byte_changed_in_place_with_the_times_put_back(file: Path, place: int) -> None:
    before, stat = content_of(file), file.stat()
    change(file, place)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert known_content(file) is None
    assert content_of(file).hash == hash_of(file) != before.hash


def test_another_file_moved_into_its_place(file: Path) -> None:
    before, stat = content_of(file), file.stat()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    change(other, BETWEEN)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)
    assert known_content(file) is None
    assert content_of(file).hash == hash_of(file) != before.hash


@pytest.mark.parametrize("place", [0, content.HEAD_BYTES - 1, SIZE // 2, SIZE - 1])
def test_samples_tell_where_the_system_has_no_time_of_change(
    file: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = content_of(file).state
    monkeypatch.setattr(content.FileState, "of", lambda stat: state)
    change(file, place)
    assert known_content(file) is None
    assert content_of(file).hash == hash_of(file)


def test_what_changed_just_now_is_read_again_each_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "SETTLED_S", 1e9)
    assert content_of(file).hash == hash_of(file) and known_content(file) is None


@pytest.mark.parametrize("size", [0, 1, 5000, content.HEAD_BYTES + 1])
def test_small_files(file: Path, size: int) -> None:
    file.write_bytes(bytes(size))
    assert content_of(file).hash == hash_of(file)
    assert known_content(file) == content_of(file)
