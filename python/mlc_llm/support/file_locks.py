"""Locks on files, against other processes and threads. They end with the process."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mlc_llm.support.files import cache_errors, cache_root
from mlc_llm.support.progress import progress
from mlc_llm.support.trust import make_folder

_POLL_S = 0.05
_QUIET_S = 1.0
"""Nobody is told of a shorter wait: engines that open at once take turns for a moment."""


@contextlib.contextmanager
def file_lock(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock the file `path` against other processes and threads. Wait while another one holds it.

    The system releases the lock when the process ends, in whatever way. The empty file stays,
    unless the holder removes it. waiting: called once if this call has to wait. Raises CacheError.
    """
    number = _locked(path, waiting or (lambda: None))
    try:
        yield
    finally:
        os.close(number)


def _locked(path: Path, waiting: Callable[[], None]) -> int:
    """The file descriptor that holds the lock."""
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
    """Whether `path` is still the opened file. The last holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except FileNotFoundError:
        return False


def forget_empty(lock: Path) -> None:
    """After work that failed: remove its lock file, then all folders of the cache above it that are
    empty. The holder of the lock calls it. What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        lock.unlink()
        for folder in lock.parents:
            if cache_root() not in folder.parents:
                return
            folder.rmdir()


@contextlib.contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Lock the file `path` if nobody holds it. Gives True if it was free; a missing file counts as
    free. Raises OSError.
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


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """As `lock_if_free`, and the file is made: True means that this call holds it. Raises
    CacheError."""
    with cache_errors(path):
        make_folder(path.parent)
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _try_lock(number)
    finally:
        os.close(number)


def _wait_for(number: int, path: Path) -> None:
    with cache_errors(path):
        end = time.monotonic() + _QUIET_S
        while time.monotonic() < end:
            if _try_lock(number):
                return
            time.sleep(_POLL_S)
        with progress("waiting for another process that makes the same", None):
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
            # flock locks the opened file, not the process, so it works between threads too
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
