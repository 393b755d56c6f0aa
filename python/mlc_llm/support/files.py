"""The cache folder, and functions that write into it so that no reader sees half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mlc_llm.errors import CacheError
from mlc_llm.support.leaving import undone
from mlc_llm.support.trust import make_folder, settle

_TEMPORARY = ".new-"
_LEFT_BEHIND_S = 24 * 3600
_LOADED_FROM = ("model_lib", "model_weights", "model_weights/packed", "kept")
"""Folders of the cache whose content is trusted, so nobody else may write into them."""
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
    """The path of the cache folder. It may not exist yet.

    It is the first of these that is set: $MLC_LLM_HOME; on Windows %LOCALAPPDATA%\\mlc_llm;
    $XDG_CACHE_HOME/mlc_llm; ~/.cache/mlc_llm. If other users own this folder or can write into it,
    a private temporary folder is used instead, and a warning says so once. Raises CacheError if
    there is no usable folder.
    """
    return settle(_chosen_root(), _LOADED_FROM)[0]


def refusal() -> str | None:
    """Why a temporary folder is used as the cache; None if the usual folder is used. Raises
    CacheError."""
    return settle(_chosen_root(), _LOADED_FROM)[1]


def _chosen_root() -> Path:
    chosen = os.environ.get("MLC_LLM_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return _system_cache() / "mlc_llm"
    except RuntimeError as error:
        raise CacheError("there is no home folder for the cache; set MLC_LLM_HOME") from error
    except FileNotFoundError as error:  # the folder that the program runs in was removed
        raise CacheError(f"MLC_LLM_HOME = {chosen!r} has no place: {error.strerror}") from error


def _system_cache() -> Path:
    local = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local:
        return Path(local)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG standard says that relative paths are ignored.
    return shared if shared.is_absolute() else Path.home() / ".cache"


def cache_dir(*parts: str) -> Path:
    """The cache folder, or the folder `parts` in it. It is made if missing, for this user only.

    Raises CacheError if the cache is read-only or full, or if a file has this name.
    """
    folder = cache_root().joinpath(*parts)
    with cache_errors(folder):
        make_folder(folder)
    return folder


@contextlib.contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Change the system's errors about `path` to a CacheError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (None, errno.ENOMEM):  # a library that cannot be loaded, not this file
            raise
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise CacheError(
            f"cannot write {path}: {reason}; make room or set MLC_LLM_HOME to another folder"
        ) from error


def check_room(folder: Path, needed: int, work: str) -> None:
    """Raise CacheError if `folder` has no room for `needed` more bytes, to say it now and not after
    minutes. work: what they are for, such as "download a model"."""
    with cache_errors(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise CacheError(
            f"{folder}: {needed >> 20} MiB are needed to {work}, {free >> 20} MiB are free; make "
            "room or set MLC_LLM_HOME to another folder"
        )


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary file to fill. If the block ends without an error, it becomes `path` at once.

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
    """Write the whole file `path`, or nothing. Raises CacheError."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder in `parent`. Fill it, then give it its final name with `publish`.

    If it still exists at the end of the block, it is removed. Raises CacheError.
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
    """A new path in `parent`, which is made if missing."""
    make_folder(parent)
    _sweep(parent)
    return parent / f"{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"


def is_temporary(path: Path) -> bool:
    """Whether `path` was made by `new_file` or `new_folder`."""
    return path.name.startswith(_TEMPORARY)


def _sweep(parent: Path) -> None:
    """Remove temporary files and folders in `parent` that are older than a day: killed processes
    left them."""
    for path in parent.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process sweeps too
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                path.unlink() if path.is_file() else shutil.rmtree(path)


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its folders. What another process removes meanwhile may be among
    them or not (`rglob` raises FileNotFoundError for a folder)."""
    for path, _, names in os.walk(folder):
        for name in names:
            yield Path(path, name)


def publish(temporary: Path, folder: Path) -> None:
    """Rename a filled folder to `folder`, after its files were written to the disk. An older
    `folder` is removed first.

    Call it under a lock: for a moment there is no folder. Raises CacheError.
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
    """Remove a folder. Readers see the whole folder or nothing. Call it under a lock.

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
    """Write a renaming to the disk, so that it survives a crash. Windows needs no call."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
