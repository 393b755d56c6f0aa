"""The cache folder, and writing into it so that nobody ever sees half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mlc_llm.errors import CacheError
from mlc_llm.support.leaving import undone
from mlc_llm.support.progress import progress
from mlc_llm.support.trust import make_folder, settle

_POLL_S = 0.05
_TEMPORARY = ".new-"
_LEFT_BEHIND_S = 24 * 3600
_LOADED_FROM = ("model_lib", "model_weights", "model_weights/packed", "kept")
"""Folders of the cache whose content is trusted."""
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "it is on a read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "a part of this path is not a folder",
    errno.EEXIST: "there is a file of this name",
    errno.ENOLCK: "its file system has no file locks",
}


def cache_root() -> Path:
    """Where the cache is, whether or not it exists yet.

    $MLC_LLM_HOME; on Windows %LOCALAPPDATA%\\mlc_llm; $XDG_CACHE_HOME/mlc_llm;
    ~/.cache/mlc_llm. Where other users own it or can write into it, a private folder for temporary
    files is it instead, and a warning says so once. Raises CacheError where there is neither.
    """
    return settle(_chosen_root(), _LOADED_FROM)[0]


def refusal() -> str | None:
    """Why the cache is not where it should be; None: it is. Raises CacheError."""
    return settle(_chosen_root(), _LOADED_FROM)[1]


def _chosen_root() -> Path:
    chosen = os.environ.get("MLC_LLM_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return _system_cache() / "mlc_llm"
    except RuntimeError as error:
        raise CacheError("there is no home folder for the cache; set MLC_LLM_HOME") from error


def _system_cache() -> Path:
    local = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local:
        return Path(local)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # its standard says that relative paths there are to be ignored
    return shared if shared.is_absolute() else Path.home() / ".cache"


def cache_dir(*parts: str) -> Path:
    """The cache folder, or the folder `parts` inside it, made where missing, for the user alone.

    Raises CacheError: read-only, full, or a file is in the way.
    """
    folder = cache_root().joinpath(*parts)
    with cache_errors(folder):
        make_folder(folder)
    return folder


@contextlib.contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into a CacheError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (None, errno.ENOMEM):  # of a library that cannot be loaded: no file's
            raise
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise CacheError(
            f"cannot write {path}: {reason}; make room or set MLC_LLM_HOME to another folder"
        ) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary file to fill that becomes `path`, all at once, when the block ends well.

    Readers see the old file or the new one, also after a crash. Raises CacheError.
    """
    with cache_errors(path):
        temporary = _temporary(path.parent)
        remove = partial(temporary.unlink, missing_ok=True)
        with undone(remove):
            temporary.touch(mode=0o600, exist_ok=False)
            try:
                yield temporary
                _sync(temporary)
                temporary.replace(path)
                _sync_folder(path.parent)
            finally:
                remove()


def write_file(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all. Raises CacheError."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder inside `parent`, to be filled and then put in its place by `publish`.

    Whatever is left of it at the end of the block is removed. Raises CacheError.
    """
    with cache_errors(parent):
        temporary = _temporary(parent)
        remove = partial(shutil.rmtree, temporary, ignore_errors=True)
        with undone(remove):
            temporary.mkdir(mode=0o700)
            try:
                yield temporary
            finally:
                remove()


def _temporary(parent: Path) -> Path:
    """A free name in `parent`."""
    make_folder(parent)
    _sweep(parent)
    return parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"


def is_temporary(path: Path) -> bool:
    """Whether `path` is what `new_file` or `new_folder` fill."""
    return path.name.startswith(_TEMPORARY)


def _sweep(parent: Path) -> None:
    """Remove what killed processes have left in `parent` a day ago or earlier."""
    for path in parent.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process sweeps too
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                path.unlink() if path.is_file() else shutil.rmtree(path)


def publish(temporary: Path, folder: Path) -> None:
    """Make a filled folder be `folder`, in place of an older one; its files are on the disk first.

    Call it under a lock: between the removal and the renaming there is no folder.
    """
    with cache_errors(folder):
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        _sync_folder(folder.parent)


def discard(folder: Path) -> None:
    """Remove a folder; for readers it is gone all at once. Call it under a lock.

    Raises CacheError.
    """
    with cache_errors(folder):
        aside = _temporary(folder.parent)
        folder.rename(aside)
        shutil.rmtree(aside)


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a renaming last through a crash. Windows does so by itself."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def file_lock(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `path` as a lock against other processes and threads; wait while another holds it.

    The system lets go when the process dies, however it dies, so a lock cannot be left behind;
    the empty file stays, unless its holder removes it. `waiting` is called once if there is a
    wait. Raises CacheError.
    """
    number = _locked(path, waiting or (lambda: None))
    try:
        yield
    finally:
        os.close(number)


def _locked(path: Path, waiting: Callable[[], None]) -> int:
    """The descriptor that holds the lock."""
    while True:
        with cache_errors(path):
            make_folder(path.parent)
            number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with cache_errors(path):
                free = _try_lock(number)
            if not free:
                waiting()
                waiting = _nothing
                _wait_for(number, path)
            if _is_still(path, number):
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _nothing() -> None:
    pass


def _is_still(path: Path, number: int) -> bool:
    """Whether `path` is the opened file: who held the lock before may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except FileNotFoundError:
        return False


def forget_empty(lock: Path) -> None:
    """Remove a lock, and its folder with those above it that are empty then, inside the cache.

    For work that failed, by the holder of the lock. Where that cannot be done they stay.
    """
    with contextlib.suppress(OSError):
        lock.unlink()
        for folder in lock.parents:
            if cache_root() not in folder.parents:
                return
            folder.rmdir()


@contextlib.contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold `path` as a lock if nobody else does; whether that is so. One that is missing is free.

    Raises OSError.
    """
    try:
        number = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _try_lock(number)
    finally:
        os.close(number)


def _wait_for(number: int, path: Path) -> None:
    with progress("waiting for another process that makes the same", None), cache_errors(path):
        while not _try_lock(number):
            time.sleep(_POLL_S)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(number: int) -> bool:
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            return False
        return True

else:
    import fcntl

    def _try_lock(number: int) -> bool:
        try:
            # of the opened file, not of the process: it holds between threads as well
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
