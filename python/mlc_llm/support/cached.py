"""Lists what is in the cache: for each thing its model, its size, and when it was last used.

A build has a file `about.txt` with the text "KIND of MODEL". Kept files contain this text.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from mlc_llm.record import record
from mlc_llm.support.file_locks import file_lock
from mlc_llm.support.files import cache_errors, discard, files_below, is_temporary
from mlc_llm.support.hub_address import COMPLETE, PARTS
from mlc_llm.support.kept import about, last_use
from mlc_llm.support.superseded import PURPOSE_FILE, lock_of

ABOUT_FILE = "about.txt"
NO_NAME = "(not known)"
"""The model of a build of an older version, which does not say its model."""

Kind = Literal[
    "packed weights", "library", "vocabulary", "checksum", "download", "part of a download", "other"
]
MADE_HERE: tuple[Kind, ...] = ("packed weights", "library", "vocabulary", "checksum")
"""Kinds that can be made again without the network; that only takes time."""
DOWNLOADED: tuple[Kind, ...] = ("download", "part of a download")


@record()
class Entry:
    """One thing in the cache. Kind `other`: no model needs it, for example the history of chats."""

    kind: Kind
    model: str
    """The name of the model's file or repository. For kind `other`: the path inside the cache."""
    path: Path
    size: int
    """Bytes."""
    last_use: float
    """Seconds since 1970."""


def record_about(folder: Path, kind: Kind, model: str) -> None:
    """Write `about.txt` into a folder that is being filled."""
    text = f"{kind} of {model}".encode("utf-8", "surrogateescape")
    (folder / ABOUT_FILE).write_bytes(text)


def entries(root: Path) -> list[Entry]:
    """Everything in the cache folder `root` except locks, sorted by model and kind."""
    found = [entry for path in _things(root) if (entry := _entry(root, path)) is not None]
    return sorted(found, key=lambda one: (one.kind == "other", one.model, one.kind, one.path))


def remove(entry: Entry) -> None:
    """Remove one thing from the cache.

    A process that has it open keeps it; a process that opens it later makes it again. If another
    process is making it, this call waits. Raises CacheError.
    """
    with cache_errors(entry.path):
        if entry.kind in DOWNLOADED:
            _remove_download(entry.path)
        elif entry.path.is_dir():
            with file_lock(lock_of(entry.path)):
                if entry.path.exists():
                    discard(entry.path)
        else:
            entry.path.unlink(missing_ok=True)


def bytes_in(path: Path) -> int:
    """Size of a file, or of all files in a folder. A file that vanishes meanwhile counts 0, and one
    that two versions of a download share counts once."""
    total, seen = 0, set[tuple[int, int]]()
    for one in files_below(path) if path.is_dir() else [path]:
        with suppress(OSError):
            found = one.lstat()
            if found.st_nlink < 2 or (found.st_dev, found.st_ino) not in seen:
                total += _bytes_of(one, found)
            seen.add((found.st_dev, found.st_ino))
    return total


def _bytes_of(file: Path, found: os.stat_result) -> int:
    """Size of a file. A part of a download counts only what has arrived."""
    if file.parent.name == PARTS and hasattr(found, "st_blocks"):
        return min(found.st_size, 512 * found.st_blocks)
    return found.st_size


def _things(root: Path) -> Iterator[Path]:
    """The path of every thing. A folder that holds several things is replaced by them."""
    hub = root / "model_weights" / "hf"
    several = {root / "model_weights", root / "model_weights" / "packed", hub}
    for top in _inside(root):
        waiting = [top]
        while waiting:
            one = waiting.pop()
            if one.parent == hub and one.is_symlink():
                continue  # what lies behind it is not the cache's, and must not be removed
            if (one in several or one.parent == hub or one == top) and one.is_dir():
                waiting += reversed(_inside(one))
            elif not one.name.endswith(".lock") and not is_temporary(one):
                yield one


def _inside(folder: Path) -> list[Path]:
    """What is in a folder. Nothing, if it vanishes meanwhile or belongs to somebody else."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _entry(root: Path, path: Path) -> Entry | None:
    """None if the thing vanishes meanwhile, and for a download folder that has only locks left."""
    try:
        kind, model = _kind_and_model(root, path)
        size = bytes_in(path)
        if kind in DOWNLOADED and size == 0:
            return None
        return Entry(kind, model, path, size, _last_use(path))
    except OSError:
        return None


def _kind_and_model(root: Path, path: Path) -> tuple[Kind, str]:
    place = path.relative_to(root).parts
    if place[0] == "kept":
        return _read_about(about(path), "vocabulary")
    if place[0] == "model_lib":
        return _read_about(_about_build(path), "library")
    if place[:2] == ("model_weights", "packed"):
        return _read_about(_about_build(path), "packed weights")
    if place[0] == "model_weights" and path.is_dir():
        if place[1] == "hf":
            whole = any(path.glob(f"*{COMPLETE}"))
            return "download" if whole else "part of a download", "/".join(place[2:])
        return "download", next((one.name for one in path.glob("*.gguf")), path.name)
    return "other", path.relative_to(root).as_posix()


def _about_build(folder: Path) -> str | None:
    try:
        return (folder / ABOUT_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _read_about(text: str | None, usual: Kind) -> tuple[Kind, str]:
    said, _, model = (text or "").partition(" of ")
    return next(((one, model) for one in MADE_HERE if one == said and model), (usual, NO_NAME))


def _last_use(path: Path) -> float:
    if path.is_file():
        return last_use(path)
    mark = path / PURPOSE_FILE
    if mark.exists():
        return mark.stat().st_mtime
    return max((last_use(one) for one in files_below(path) if one.is_file()), default=0.0)


def _remove_download(folder: Path) -> None:
    """Remove all files but the locks, because other processes may wait for these."""
    with ExitStack() as held:
        locks = list(folder.glob("*.lock"))
        for lock in locks:
            held.enter_context(file_lock(lock))
        for one in folder.iterdir():
            if one not in locks:
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else os.unlink(one)
    if not any(folder.iterdir()):
        folder.rmdir()
