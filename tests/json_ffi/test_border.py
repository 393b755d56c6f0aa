"""A C++ program drives the engine; it is compiled here with the headers of tvm-ffi."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tvm_ffi import libinfo

SOURCE = Path(__file__).parent / "border.cc"
PROGRAM = """
import ctypes, sys
import mlc_llm.json_ffi
drive = ctypes.CDLL(sys.argv[1]).drive
drive.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
print("checks failed at:", drive(sys.argv[2].encode(), b"Count up from one, please"))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: neither CXX nor g++ nor clang++")
    made = tmp_path_factory.mktemp("border") / "libborder.so"
    runtime = Path(libinfo.find_libtvm_ffi())
    includes = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    command = [compiler, "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(made)]
    command += [f"-I{path}" for path in includes] + [str(runtime), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return made


def drive(library: Path, model: str | None) -> None:
    command = [sys.executable, "-c", PROGRAM, str(library), json.dumps(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "checks failed at: 0\n"), done.stderr


def test_echo(library: Path) -> None:
    drive(library, "mock://echo")


@pytest.mark.model
def test_default_model(library: Path, default_model: Path) -> None:
    drive(library, str(default_model))
