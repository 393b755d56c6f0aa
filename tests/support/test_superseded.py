"""Old builds in the cache: removed when replaced and unused, and never anything else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mlc_llm.support import superseded
from mlc_llm.support.file_locks import file_lock
from mlc_llm.support.superseded import PURPOSE_FILE, UNUSED_S, lock_of, record_purposes, use


def build(parent: Path, name: str, purpose: str | list[str], age_s: float) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "weights").write_bytes(b"x" * 1000)
    record_purposes(folder, [purpose] if isinstance(purpose, str) else purpose)
    then = time.time() - age_s
    os.utime(folder / PURPOSE_FILE, (then, then))
    return folder


def test_a_replaced_build_goes_once_nobody_has_used_it_for_a_day(tmp_path: Path) -> None:
    old = build(tmp_path, "old", "a model", UNUSED_S + 60)
    recent = build(tmp_path, "recent", "a model", UNUSED_S - 60)
    other = build(tmp_path, "other", "another model", 10 * UNUSED_S)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    new = build(tmp_path, "new", "a model", 0)
    use(new)
    assert not old.exists()
    assert recent.exists() and other.exists() and stranger.exists() and new.exists()
    assert not list(tmp_path.glob(".new-*"))


def test_one_purpose_of_several_is_enough(tmp_path: Path) -> None:
    content = build(tmp_path, "content", ["a model", "a place"], UNUSED_S + 60)
    place = build(tmp_path, "place", ["another model", "this place"], UNUSED_S + 60)
    other = build(tmp_path, "other", ["another model", "another place"], UNUSED_S + 60)
    use(build(tmp_path, "new", ["a model", "this place"], 0))
    assert not content.exists() and not place.exists() and other.exists()


def test_what_is_used_again_is_kept(tmp_path: Path) -> None:
    """Two versions of the package that take turns do not build again each time."""
    first = build(tmp_path, "first", "a model", 2 * UNUSED_S)
    second = build(tmp_path, "second", "a model", UNUSED_S / 2)
    use(first)
    use(second)
    assert first.exists() and second.exists()


def test_what_was_mapped_can_still_be_read(tmp_path: Path) -> None:
    old = build(tmp_path, "old", "a model", 2 * UNUSED_S)
    with (old / "weights").open("rb") as file:
        use(build(tmp_path, "new", "a model", 0))
        assert not old.exists() and file.read() == b"x" * 1000


def test_one_that_is_being_made_anew_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build(tmp_path, "old", "a model", 2 * UNUSED_S)

    def made_meanwhile(path: Path) -> object:
        assert path == lock_of(old)
        os.utime(old / PURPOSE_FILE)
        return file_lock(path)

    monkeypatch.setattr(superseded, "file_lock", made_meanwhile)
    use(build(tmp_path, "new", "a model", 0))
    assert old.exists()


def test_a_cache_that_cannot_be_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build(tmp_path, "old", "a model", 2 * UNUSED_S)
    new = build(tmp_path, "new", "a model", 0)

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", refuse)
    use(new)
    assert old.exists()
    monkeypatch.undo()
    use(tmp_path / "never made")
    assert old.exists()
