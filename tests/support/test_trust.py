"""Which folders code and weights are taken from: those that nobody but the user can write."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlc_llm.errors import CacheError
from mlc_llm.support import trust
from mlc_llm.support.files import cache_dir, cache_root, refusal, write_file
from mlc_llm.support.superseded import is_sound
from mlc_llm.support.trust import make_folder, settle, why_unsafe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no owners there")
STRANGER = 4_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache as it was made with a umask of 022; temporary files are beside it."""
    folder = tmp_path / "above" / "cache"
    for one in (folder.parent, folder, folder / "model_lib"):
        one.mkdir()
        one.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("MLC_LLM_HOME", str(folder))
    settle.cache_clear()
    return folder


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`path` seems to be another user's."""
    inner = Path.lstat

    def lstat(one: Path) -> object:
        found = inner(one)
        if one != path:
            return found
        return SimpleNamespace(st_uid=STRANGER, st_gid=found.st_gid, st_mode=found.st_mode)

    monkeypatch.setattr(Path, "lstat", lstat)


def refused(caplog: pytest.LogCaptureFixture) -> str:
    """The one line of warning about a cache that is not where it should be."""
    own = cache_root()
    assert own.stat().st_mode & 0o777 == 0o700 and why_unsafe(own) is None
    assert cache_dir("model_lib").parent == own == cache_root()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and str(own) in record.message
    assert refusal() is not None and str(refusal()) in record.message
    assert "\n" not in record.message
    return record.message


def test_a_cache_of_the_user_is_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cache_root() == folder and refusal() is None and not caplog.records


@pytest.mark.parametrize("name", ["", "model_lib", "model_weights/packed", "kept"])
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775, 0o1777])
def test_a_folder_that_others_can_write(
    folder: Path, name: str, mode: int, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(trust, "_is_own_group", lambda gid: False)
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name).chmod(mode)
    assert f"because other users can write {folder / name};" in refused(caplog)


@pytest.mark.parametrize("name", ["", "model_lib"])
def test_a_folder_of_another_user(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(folder / name, monkeypatch)
    assert f"{folder / name} belongs to another user ({STRANGER})" in refused(caplog)


def test_the_home_of_another_user_without_a_cache(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with sudo: what is made there could be renamed by the folder's owner."""
    monkeypatch.setenv("MLC_LLM_HOME", str(folder.parent / "none" / "yet"))
    give_away(folder.parent, monkeypatch)
    assert f"{folder.parent} belongs to another user" in refused(caplog)
    assert not (folder.parent / "none").exists()


def test_a_link_is_followed(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    monkeypatch.setenv("MLC_LLM_HOME", str(link))
    assert cache_root() == folder
    settle.cache_clear()
    folder.chmod(0o777)
    assert f"the cache folder {link} is not used" in refused(caplog)


def test_folders_above(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.chmod(0o1777)
    assert cache_root() == folder, "like /tmp"
    settle.cache_clear()
    folder.parent.chmod(0o777)
    assert f"other users can write {folder.parent}" in refused(caplog)


def test_a_group_of_which_the_user_is_the_only_member(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grp
    import pwd

    monkeypatch.setattr(trust, "_user", lambda: 1000)
    user = SimpleNamespace(pw_uid=1000, pw_gid=7, pw_name="ann")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    members: list[str] = []
    group = SimpleNamespace(gr_name="ann", gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    assert trust._is_own_group(7) and not trust._is_own_group(8)
    members.append("eve")
    assert not trust._is_own_group(7)


def test_a_private_folder_that_another_user_has_taken(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "temporary" / f"mlc_llm-{os.geteuid()}"
    taken.mkdir(mode=0o700)
    folder.chmod(0o777)
    give_away(taken, monkeypatch)
    refused(caplog)
    assert cache_root() != taken


def test_no_private_folder_at_all(folder: Path, tmp_path: Path) -> None:
    folder.chmod(0o777)
    (tmp_path / "temporary").chmod(0o777)
    with pytest.raises(CacheError, match="set MLC_LLM_HOME to a folder of your own"):
        cache_root()


def test_what_is_made_is_for_the_user_alone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        write_file(cache_dir("model_lib") / "file", b"")
        make_folder(tmp_path / "a" / "c" / "d")
    finally:
        os.umask(before)
    for one in (tmp_path / "a").rglob("*"):
        assert stat.S_IMODE(one.stat().st_mode) == (0o700 if one.is_dir() else 0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", [".", "last"])
def test_a_build_that_others_can_write_is_made_again(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    build = folder / "model_lib" / "build"
    build.mkdir(mode=0o755)
    (build / "last").touch(mode=0o644)
    assert is_sound(build, "last") and not is_sound(build, "other")
    (build / name).chmod(0o777)
    assert not is_sound(build, "last")
    assert f"other users can write {build / name}; it is made again" in caplog.text
