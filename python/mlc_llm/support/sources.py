"""The hash of source files. Each start reads hundreds of them, so it makes no objects for them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_ENDS = (".py", ".ll")
"""Of the names of files in Python, and in LLVM's language."""


def hash_of_sources(package: Path, folders: Iterable[str]) -> str:
    """Hexadecimal SHA-256 of the source files in folders of a package, with their names in it.
    Raises OSError."""
    found = hashlib.sha256()
    for folder in folders:
        for name in _sources(str(package / folder)):
            inside = name.removeprefix(str(package)).replace(os.sep, "/")
            found.update(inside.encode() + b"\0" + _read(name))
    return found.hexdigest()


def _read(name: str) -> bytes:
    """All of a file."""
    file = os.open(name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(file).st_size
        data = os.read(file, size)
        while len(data) < size and (more := os.read(file, size - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def _sources(folder: str) -> list[str]:
    """The source files in a folder and the folders inside it, always in the same order."""
    walk = os.walk(folder)
    return sorted(
        os.path.join(where, name)
        for where, _, names in walk
        for name in names
        if name[-3:] in _ENDS
    )
