"""Which builds in the cache replace which: by purpose, whatever version made them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
from tiny_models import TinyModels

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler import jit, keys
from mlc_llm.compiler.build import build_library
from mlc_llm.errors import CacheError
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.support.superseded import PURPOSE_FILE

PORTABLE, VNNI, AMX = map(backend_of, ("portable", "vnni", "amx"))


def test_a_new_version_has_new_keys_and_the_old_purposes(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GGUFModel.open(tiny_models.path("plain"))
    plan = file.plan()

    def names() -> list[str]:
        return [
            jit.library_names(plan, PORTABLE).key,
            jit.weights_key(jit.content_of_model(file), PORTABLE),
            jit.library_names(plan, PORTABLE).purpose,
            *jit.weights_purposes(jit.content_of_model(file), file.path, PORTABLE),
        ]

    before = names()
    for module in (jit, keys):
        monkeypatch.setattr(module, "source_hash", lambda: "another version")
    after = names()
    assert after[2:] == before[2:] and not set(after[:2]) & set(before)
    assert len({*before, *after}) == 7


def test_a_new_version_takes_the_kernels_of_the_old_one(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    build = tvm.tirx.build

    def noted(module: tvm.IRModule, **named: Any) -> object:
        names = [var.name_hint for var in module.get_global_vars()]
        # TVM's functions that compute shapes differ from build to build.
        compiled.extend(name for name in names if not name.startswith("shape_func"))
        return build(module, **named)

    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    monkeypatch.setattr("mlc_llm.compiler.build.build_library", build_library)
    monkeypatch.setattr(tvm.tirx, "build", noted)
    file = GGUFModel.open(tiny_models.path("one-layer"))
    before = jit.prepare(file, "portable").library
    assert "attention" in compiled
    compiled.clear()
    monkeypatch.setattr(jit, "source_hash", lambda: "another version")
    after = jit.prepare(file, "portable").library
    assert before != after and compiled == []


def test_nothing_is_compiled_on_a_full_disk(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM ends the process where it cannot write."""
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    monkeypatch.setattr(jit, "MOST_LIBRARY_BYTES", 1 << 60)
    file = GGUFModel.open(tiny_models.path("one-layer"))
    words = r"model_lib: \d+ MiB are needed to compile a library, \d+ MiB are free; make room"
    with pytest.raises(CacheError, match=words):
        jit.prepare(file, "portable")
    assert [one.suffix for one in (tmp_path / "model_lib").iterdir()] == [".lock"]


def test_other_kernels_and_other_models_have_purposes_of_their_own(
    tiny_models: TinyModels,
) -> None:
    found = set()
    for name in ("plain", "floats"):
        file = GGUFModel.open(tiny_models.path(name))
        for one in (PORTABLE, VNNI):
            plan = file.plan()
            content = jit.content_of_model(file)
            found |= {jit.library_names(plan, one).purpose}
            found |= set(jit.weights_purposes(content, file.path, one))
    assert len(found) == 12


def test_a_library_with_more_kernels_does_not_take_the_place_of_one_with_fewer(
    tiny_models: TinyModels,
) -> None:
    file = GGUFModel.open(tiny_models.path("plain"))
    plan = file.plan()
    fast = AMX.with_precision("fast-prompts")
    assert jit.library_names(plan, AMX).key != jit.library_names(plan, fast).key
    assert jit.library_names(plan, AMX).purpose != jit.library_names(plan, fast).purpose


def test_a_folder_is_made_once_and_takes_the_place_of_older_ones(tmp_path: Path) -> None:
    made: list[str] = []

    def work(name: str) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            made.append(name)
            (folder / "last").write_text(name)

        return write

    for name in ("one", "one", "two"):
        jit._make(tmp_path / name, "last", ["the same"], work(name), rebuild=False)
    assert made == ["one", "two"] and (tmp_path / "one").exists()
    os.utime(tmp_path / "one" / PURPOSE_FILE, (0, 0))
    jit._make(tmp_path / "two", "last", ["the same"], work("two"), rebuild=False)
    assert not (tmp_path / "one").exists() and (tmp_path / "two" / "last").read_text() == "two"
    jit._make(tmp_path / "two", "last", ["the same"], work("again"), rebuild=True)
    assert made == ["one", "two", "again"]
