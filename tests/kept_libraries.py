"""Compiles model libraries as `build_library` does, but each of them once for all runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kept
import pytest
from tvm import IRModule
from tvm.target import Target

import mlc_llm
from mlc_llm.backends.base import Backend, Compiled
from mlc_llm.backends.cpu import codegen
from mlc_llm.backends.registry import REFERENCE
from mlc_llm.compiler.build import build_library
from mlc_llm.models.spec import ModelSpec

QUICKEST = 0
"""LLVM's optimisation of reference kernels, and in quick runs of tiny models: compiling takes half
of the time or less, and the tests run each of them for milliseconds. `--slow` tests tiny models as
users have them. All runs do that with kernels by themselves and with the default model."""
MOST_TINY = 256
"""Numbers of a token's vector in a tiny model."""
SHAPING_FOLDERS = ("backends", "compiler", "kernels", "library", "models")


def build_kept(
    spec: ModelSpec,
    backend: Backend,
    folder: Path,
    *,
    triple: str | None = None,
    libraries: Path | None = None,
    quickest: bool = False,
) -> None:
    """`build_library`, from what an earlier run has kept where it can be, not from `libraries`.

    quickest: with `QUICKEST` for all kernels, also in runs with `--slow`.
    """

    is_tiny = spec.hidden <= MOST_TINY and not kept.is_thorough()
    entries = kept.folder("libraries")
    level = QUICKEST if quickest or is_tiny or backend.name == REFERENCE else None

    def make(new: Path) -> None:
        new.mkdir()
        with _optimised(level):
            build_library(spec, backend, new, triple=triple, libraries=entries)

    identity = (backend.name, backend.library_identity(), triple, level)
    key = kept.digest(spec, identity, _sources(), version("apache-tvm"))
    shutil.copytree(kept.entry(entries / key, make), folder, dirs_exist_ok=True)


@contextmanager
def _optimised(level: int | None) -> Iterator[None]:
    """LLVM's effort for what is compiled meanwhile; None is the usual one."""
    usual = codegen.compile_module

    def compile_module(module: IRModule, target: Target, *more: Any, **named: Any) -> Compiled:
        options = {**target.export(), "opt-level": level}
        return usual(module, Target(options), *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        if level is not None:
            patch.setattr(codegen, "compile_module", compile_module)
        yield


@contextmanager
def libraries_are_kept() -> Iterator[None]:
    """The engines of this process compile with `build_kept`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlc_llm.compiler.build.build_library", build_kept)
        yield


@cache
def _sources() -> str:
    package = Path(mlc_llm.__file__).parent
    folders = [package / name for name in SHAPING_FOLDERS]
    files = [file for one in folders for end in ("py", "ll") for file in one.rglob(f"*.{end}")]
    return kept.digest(files=sorted(files))
