"""Removes folders of the cache that a newer build of the same thing has replaced.

Each folder has a file `purpose.txt` with the purposes it was made for, one a line. If several
folders share a purpose, the one in use is the newest build, and this version does not need the
others. Another version of this package may need them, so they are removed only after nobody has
used them for a day.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mlc_llm.errors import CacheError
from mlc_llm.support.file_locks import file_lock
from mlc_llm.support.files import discard
from mlc_llm.support.trust import why_unsafe_inside

_log = logging.getLogger(__name__)

PURPOSE_FILE = "purpose.txt"
"""The time of this file is the time of the last use."""
UNUSED_S = 24 * 3600


def record_purposes(folder: Path, purposes: Iterable[str]) -> None:
    """Write the purposes into a folder that is being filled."""
    (folder / PURPOSE_FILE).write_text("\n".join(purposes), encoding="utf-8")


def lock_of(folder: Path) -> Path:
    """The lock to hold while a folder of the cache is made or removed."""
    return folder.with_suffix(".lock")


def is_sound(folder: Path, last_file: str) -> bool:
    """Whether a folder is complete, and no other user can have changed it. last_file: the file that
    is written last."""
    with suppress(OSError):
        if not (folder / last_file).exists():
            return False
        why = why_unsafe_inside(folder)
        if why is not None:
            _log.warning("%s is not used, because %s; it is made again", folder, why)
        return why is None
    return False


def use(folder: Path) -> None:
    """Note that a folder is used now, and remove the folders beside it that it has replaced.

    If the cache cannot be written, nothing happens. A process that has opened a removed file can
    still read it; a process that opens it later makes the folder again.
    """
    with suppress(OSError, CacheError):
        mark = folder / PURPOSE_FILE
        os.utime(mark)
        purposes = _purposes(mark)
        for other in folder.parent.glob(f"*/{PURPOSE_FILE}"):
            if other != mark and _is_unused(other) and _purposes(other) & purposes:
                _remove(other)


def _purposes(mark: Path) -> set[bytes]:
    return set(mark.read_bytes().splitlines())


def _remove(mark: Path) -> None:
    with file_lock(lock_of(mark.parent)):
        if _is_unused(mark):  # it may have been made again before we had the lock
            discard(mark.parent)


def _is_unused(mark: Path) -> bool:
    return mark.exists() and time.time() - mark.stat().st_mtime > UNUSED_S
