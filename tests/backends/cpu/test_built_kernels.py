"""Kernels that another library has are not compiled again, and nothing else is taken for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm

from mlc_llm.backends.cpu.built_kernels import BuiltKernels
from mlc_llm.backends.cpu.codegen import compile_kernels
from mlc_llm.backends.cpu.isa import AVX2, PORTABLE, Isa
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.kernels.cpu.rows import take_rows
from mlc_llm.library.metadata import METADATA_FILE

Change = Callable[[Path], object]


class Compiler:
    """Compiles kernels, and counts those that were not there."""

    def __init__(self, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.libraries = libraries
        self.count = 0
        build = tvm.tirx.build

        def counted(*args: Any, **named: Any) -> object:
            self.count += 1
            return build(*args, **named)

        monkeypatch.setattr(tvm.tirx, "build", counted)

    def compile(self, name: str, width: int = 8, isa: Isa = PORTABLE, passes: str = "") -> Path:
        """The object file of a kernel in a new library of that name."""
        folder = self.libraries / name
        folder.mkdir()
        kernel = take_rows(width).with_attr("global_symbol", "take")
        module = tvm.IRModule({"take": kernel})
        without = [passes] if passes else []
        built = BuiltKernels(self.libraries)
        (file,) = compile_kernels(module, target_for(isa), folder, without, built)
        sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest()}
        (folder / METADATA_FILE).write_text(json.dumps({"sha256": sums}))
        return folder / file


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(tmp_path, monkeypatch)


def test_an_equal_kernel_is_taken(compiler: Compiler) -> None:
    first, second = compiler.compile("a"), compiler.compile("b")
    assert compiler.count == 1
    assert first.name == second.name and first.read_bytes() == second.read_bytes()


def test_what_decides_about_the_code_decides_about_the_name(compiler: Compiler) -> None:
    paths = [
        compiler.compile("a"),
        compiler.compile("another width", width=16),
        compiler.compile("another machine", isa=AVX2),
        compiler.compile("other passes", passes="s_tir.CompactBufferAllocation"),
    ]
    assert compiler.count == len(paths) == len({path.name for path in paths})


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _of_metadata(text: str) -> Change:
    return lambda path: (path.parent / METADATA_FILE).write_text(text)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_cut, id="cut short"),
        pytest.param(Path.unlink, id="removed"),
        pytest.param(lambda path: (path.parent / METADATA_FILE).unlink(), id="not yet whole"),
        pytest.param(_of_metadata("{"), id="no JSON"),
        pytest.param(_of_metadata("[]"), id="a list"),
        pytest.param(_of_metadata('{"sha256": {}}'), id="of other files"),
    ],
)
def test_what_is_not_as_it_was_written_is_compiled_again(
    compiler: Compiler, damage: Change
) -> None:
    first = compiler.compile("a")
    code = first.read_bytes()
    damage(first)
    second = compiler.compile("b")
    assert compiler.count == 2 and second.read_bytes() == code
    compiler.compile("c")
    assert compiler.count == 2, "the whole one is found beside the broken one"


def test_no_libraries(tmp_path: Path) -> None:
    assert not BuiltKernels(None).take("kernels.a.0.o", tmp_path)
    assert not BuiltKernels(tmp_path / "missing").take("kernels.a.0.o", tmp_path)
