"""Facts of installed packages, without `importlib.metadata`, which loads 30 modules for e-mail.

Only the usual form is read here: a folder NAME-VERSION.dist-info in a folder of `sys.path`. For
whatever else there is, `importlib.metadata` is asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_REAL = "importlib.metadata"
_ENDING = ".dist-info"


class Distribution:
    """An installed package."""

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        """Its folder. TVM reads this name."""
        self.version = version

    def read_text(self, name: str) -> str | None:
        """A file of the folder; None if there is none."""
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except OSError:
            return None


def version(name: str) -> str:
    """The version of a package. Raises `importlib.metadata.PackageNotFoundError`."""
    found: str = distribution(name).version
    return found


def distribution(name: str) -> Any:
    """A package that is installed. Raises `importlib.metadata.PackageNotFoundError`."""
    wanted = _plain(name)
    for folder in sys.path:
        for one in _entries(folder):
            if not one.endswith(_ENDING):
                continue
            stem, _, number = one[: -len(_ENDING)].rpartition("-")
            if _plain(stem) == wanted:
                return Distribution(Path(folder, one), number)
    return _real().distribution(name)


@contextmanager
def light_metadata() -> Iterator[None]:
    """What is imported within it finds this module in place of `importlib.metadata`, unless that
    one is loaded already. For imports of TVM's packages, which ask it for paths and versions."""
    if _REAL in sys.modules:
        yield
        return
    sys.modules[_REAL] = _StandIn(_REAL)
    try:
        yield
    finally:
        if isinstance(sys.modules.get(_REAL), _StandIn):
            del sys.modules[_REAL]


class _StandIn(ModuleType):
    """`distribution` and `version` are ours; every other name is that of the real module."""

    distribution = staticmethod(distribution)
    version = staticmethod(version)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what importing asks of a module
            raise AttributeError(name)
        return getattr(_real(), name)


def _real() -> ModuleType:
    if isinstance(sys.modules.get(_REAL), _StandIn):
        del sys.modules[_REAL]
    import importlib.metadata

    return importlib.metadata


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _plain(name: str) -> str:
    """Names of packages are equal if these are."""
    return re.sub(r"[-_.]+", "-", name).lower()
