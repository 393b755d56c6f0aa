"""Folders of the cache that a newer build of the same thing has replaced.

A folder says in `purpose.txt` what it was made for, a purpose a line; of several with one purpose,
the one that is used is the newest build, and the others are of no more use to it. They may be to
another version of this package, so they are removed only when nobody has used them for a while.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mlc_llm.errors import CacheError
from mlc_llm.support.files import discard, file_lock
from mlc_llm.support.trust import why_unsafe_inside

_log = logging.getLogger(__name__)

PURPOSE_FILE = "purpose.txt"
"""Its time is that of the last use."""
UNUSED_S = 24 * 3600


def record_purposes(folder: Path, purposes: Iterable[str]) -> None:
    """Say what a folder under construction is for."""
    (folder / PURPOSE_FILE).write_text("\n".join(purposes), encoding="utf-8")


def lock_of(folder: Path) -> Path:
    """What to hold while a folder of the cache is made or removed."""
    return folder.with_suffix(".lock")


def is_sound(folder: Path, last_file: str) -> bool:
    """Whether a folder was made to the end, and nobody but the user can have changed it."""
    with suppress(OSError):
        if not (folder / last_file).exists():
            return False
        why = why_unsafe_inside(folder)
        if why is not None:
            _log.warning("%s is not used, because %s; it is made again", folder, why)
        return why is None
    return False


def use(folder: Path) -> None:
    """Note that a folder is used, and remove its neighbours that it has replaced.

    A cache that cannot be written stays as it is. Who has opened a file that is removed keeps it;
    who was about to makes the folder again.
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
        if _is_unused(mark):  # nobody made it anew meanwhile
            discard(mark.parent)


def _is_unused(mark: Path) -> bool:
    return mark.exists() and time.time() - mark.stat().st_mtime > UNUSED_S
