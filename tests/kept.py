"""What tests keep from one run to the next: compiled code, below pytest's own cache folder.

The name of an entry is a hash over everything that decides what is in it, so none is ever out of
date. `pytest --cache-clear` removes them all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

MOST_BYTES = 512 << 20
"""Of all entries together; the ones that were not used for the longest time go first."""
LONGEST_UNUSED_S = 14 * 24 * 3600
FOLDERS = ("kernels", "libraries")
_state: dict[str, Path] = {}
_options: dict[str, bool] = {}


def configure(config: pytest.Config) -> None:
    """Choose the folder: a temporary one in a run without pytest's cache."""
    _options["slow"] = config.getoption("--slow")
    cache = getattr(config, "cache", None)
    if cache is None:
        temporary = tempfile.TemporaryDirectory(prefix="mlc-llm-tests-")
        config.add_cleanup(temporary.cleanup)
        _state["root"] = Path(temporary.name)
    else:
        _state["root"] = cache.mkdir("compiled")


def is_thorough() -> bool:
    """Whether this run has `--slow`, or is no run of tests."""
    return _options.get("slow", True)


def folder(name: str) -> Path:
    """The folder of one kind of entries, made where missing."""
    found = _state["root"] / name
    found.mkdir(exist_ok=True)
    return found


def entry(path: Path, make: Callable[[Path], None]) -> Path:
    """The file or folder at `path`; where it is missing, `make` fills a temporary one, which takes
    its place all at once. Two processes may make the same: the first one's stays."""
    if not path.exists():
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
        try:
            make(temporary / path.name)
            with suppress(OSError):  # of a folder that another process has put there
                (temporary / path.name).rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    os.utime(path)  # it was used now
    return path


def digest(*parts: object, files: Iterable[Path] = ()) -> str:
    """A name for plain values and the bytes of files."""
    found = hashlib.sha256(repr(parts).encode())
    for file in files:
        found.update(str(file).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:32]


def prune(root: Path, now: float | None = None, most_bytes: int = MOST_BYTES) -> None:
    """Remove entries that are old, and the oldest ones of too many."""
    now = time.time() if now is None else now
    entries = [path for name in FOLDERS for path in (root / name).glob("*")]
    kept = 0
    for path in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True):
        kept += _size(path)
        if kept > most_bytes or now - path.stat().st_mtime > LONGEST_UNUSED_S:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def prune_all() -> None:
    """`prune` what was kept so far. Call it while no test runs."""
    with suppress(FileNotFoundError):  # another run removes entries at this moment
        prune(_state["root"])


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
