"""The cache folder, whole-file writing and the lock between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_llm.errors import CacheError
from mlc_llm.support import file_locks, files
from mlc_llm.support.file_locks import file_lock, forget_empty
from mlc_llm.support.files import (
    cache_dir,
    cache_root,
    files_below,
    new_file,
    new_folder,
    publish,
    write_file,
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLC_LLM_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))


def test_a_relative_folder_where_the_current_one_was_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("MLC_LLM_HOME", "here")
    with pytest.raises(CacheError, match="MLC_LLM_HOME = 'here' has no place: No such file"):
        cache_root()


def test_cache_root_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert cache_root() == home / ".cache" / "mlc_llm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_root() == home / ".cache" / "mlc_llm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "mlc_llm"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(files.sys, "platform", "win32")
    assert cache_root() == tmp_path / "local" / "mlc_llm"
    monkeypatch.setenv("MLC_LLM_HOME", "~/mine")
    assert cache_root() == home / "mine"
    assert not home.exists()


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CacheError, match="set MLC_LLM_HOME"):
        cache_root()


def test_cache_dir_makes_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "a" / "b"))
    assert cache_dir("model_lib", "x") == tmp_path / "a" / "b" / "model_lib" / "x"
    assert cache_dir("model_lib", "x").is_dir()


def test_a_file_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("MLC_LLM_HOME", str(home))
        with pytest.raises(
            CacheError, match=r"cannot write .*file.*; make room or set MLC_LLM_HOME"
        ):
            cache_dir()


def test_write_replaces_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_file(path, b"first, longer")
    write_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["file"]


def test_failed_write_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(KeyboardInterrupt), new_file(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, "permission denied"),
        (errno.EDQUOT, "quota"),
    ],
)
@pytest.mark.parametrize("step", ["touch", "mkdir", "replace"])
def test_every_step_may_fail(
    number: int, reason: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "file"

    def fail(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(CacheError, match=reason) as caught:
        write_file(path, b"data")
    monkeypatch.undo()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not path.exists() and list(tmp_path.rglob(".new-*")) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_really_full_disk() -> None:
    with pytest.raises(CacheError, match="the disk is full"), files.cache_errors(Path("/dev/full")):
        Path("/dev/full").write_bytes(b"data")


def test_folder_is_published_whole(tmp_path: Path) -> None:
    target = tmp_path / "library"
    for content in ("one", "two"):
        with new_folder(tmp_path) as temporary:
            (temporary / "sub").mkdir()
            (temporary / "sub" / "file").write_text(content)
            assert content == "two" or not target.exists()
            publish(temporary, target)
        assert (target / "sub" / "file").read_text() == content
    assert os.listdir(tmp_path) == ["library"]


def test_folder_given_up_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), new_folder(tmp_path) as temporary:
        (temporary / "file").touch()
        raise ValueError("no")
    assert os.listdir(tmp_path) == []


def test_folders_that_vanish_while_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/b/file", "c/file", "file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)} == {
        *("a/b/file", "c/file", "file")
    }
    scandir = os.scandir

    def vanish(path: str | Path) -> object:
        if Path(path).name in ("b", "c"):
            Path(path, "file").unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    assert list(files_below(tmp_path)) == [tmp_path / "file"]
    assert not list(files_below(tmp_path / "missing"))


def test_only_old_leftovers_are_swept(tmp_path: Path) -> None:
    old, old_file, young = (tmp_path / f".new-{name}" for name in ("old", "file", "young"))
    old.mkdir()
    (old / "half").touch()
    old_file.touch()
    young.mkdir()
    for path in (old, old_file):
        os.utime(path, (0, 0))
    write_file(tmp_path / "file", b"")
    assert sorted(os.listdir(tmp_path)) == [".new-young", "file"]


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with file_lock(tmp_path / "deep" / "x.lock"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert (most, inside) == (1, 0)


@pytest.mark.parametrize("quiet", [0.0, 60.0])
def test_only_a_long_wait_is_told(
    quiet: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(file_locks, "_QUIET_S", quiet)
    path, waits = tmp_path / "x.lock", threading.Event()

    def work() -> None:
        with file_lock(path, waiting=waits.set):
            pass

    other = threading.Thread(target=work)
    with file_lock(path):
        other.start()
        assert waits.wait(20)
        time.sleep(3 * file_locks._POLL_S)
    other.join(20)
    assert ("waiting for another process" in capsys.readouterr().err) == (quiet == 0)


HOLD = """
import sys, time
from pathlib import Path
from mlc_llm.support.file_locks import file_lock
from mlc_llm.support.files import write_file
folder = Path(sys.argv[1])
with file_lock(folder / "x.lock"):
    print("held", flush=True)
    sys.stdin.readline()
    write_file(folder / "result", b"made by the first")
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until it is told a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_second_process_finds_the_first_ones_result(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert process.stdin is not None
        say: Callable[[str], int] = process.stdin.write

        def let_go() -> None:
            assert not (tmp_path / "result").exists()
            say("go\n")
            process.stdin.flush()

        with file_lock(tmp_path / "x.lock", waiting=let_go):
            assert (tmp_path / "result").read_bytes() == b"made by the first"


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process, file_lock(tmp_path / "x.lock", waiting=process.kill):
        assert not (tmp_path / "result").exists()


REMOVE = """
import sys
from pathlib import Path
from mlc_llm.support.file_locks import file_lock, forget_empty
lock = Path(sys.argv[1])
with file_lock(lock):
    print("held", flush=True)
    sys.stdin.readline()
    forget_empty(lock)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_removed_lock_is_made_anew_by_who_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    lock = tmp_path / "folder" / "x.lock"
    with subprocess.Popen(
        [sys.executable, "-c", REMOVE, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with file_lock(lock, waiting=process.stdin.close):
            assert lock.exists()  # what another process would open is what is held here


def test_forgetting_leaves_what_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "cache"))
    for name in ("a/b/c/x.lock", "a/kept", "x.lock"):
        write_file(tmp_path / "cache" / name, b"")
    forget_empty(tmp_path / "cache" / "a" / "b" / "c" / "x.lock")
    forget_empty(tmp_path / "cache" / "x.lock")
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["a", "kept"]


def test_lock_in_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"x\.lock"), file_lock(tmp_path / "file" / "x.lock"):
        pass
