"""Compiles model libraries as `build_library` does, but each of them once for all runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import kept
import pytest

import mlc_llm
from mlc_llm.backends.base import Backend
from mlc_llm.compiler.build import build_library
from mlc_llm.models.spec import ModelSpec

SHAPING_FOLDERS = ("backends", "compiler", "kernels", "library", "models")


def build_kept(
    spec: ModelSpec, backend: Backend, folder: Path, *, triple: str | None = None
) -> None:
    """`build_library`, from what an earlier run has kept where it can be."""

    def make(new: Path) -> None:
        new.mkdir()
        build_library(spec, backend, new, triple=triple)

    identity = (backend.name, backend.library_identity(), triple)
    key = kept.digest(spec, identity, _sources(), version("apache-tvm"))
    shutil.copytree(kept.entry(kept.folder("libraries") / key, make), folder, dirs_exist_ok=True)


@contextmanager
def libraries_are_kept() -> Iterator[None]:
    """The engines of this process compile with `build_kept`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlc_llm.compiler.build.build_library", build_kept)
        yield


@cache
def _sources() -> str:
    package = Path(mlc_llm.__file__).parent
    files = [file for name in SHAPING_FOLDERS for file in (package / name).rglob("*.py")]
    return kept.digest(files=sorted(files))
