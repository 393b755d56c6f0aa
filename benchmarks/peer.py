"""The peer, llama.cpp: built from a pinned source archive, and its own benchmark program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python"
RELEASE = "0.3.36"
"""Its source archive carries llama.cpp (commit 0c1e570) and can be had from the package index."""
PROGRAMS = ("llama-bench", "llama-quantize")
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
TESTS = {
    "prefill 128": ("-p", "128", "-n", "0"),
    "prefill 512": ("-p", "512", "-n", "0"),
    "decode": ("-p", "0", "-n", "128", "-d", "128"),
}


def programs(folder: Path) -> Path:
    """The folder of the peer's programs, which are built first if they are not there (minutes).

    Everything stays inside `folder`. Needs a C++ compiler; cmake and ninja are installed into an
    environment of its own.
    """
    made = folder / "build" / "bin"
    if not (made / "llama-bench").exists():
        _build(folder, _source(folder))
    return made


def _source(folder: Path) -> Path:
    """Download and unpack the source archive; the folder of llama.cpp inside."""
    unpacked = folder / f"{PACKAGE.replace('-', '_')}-{RELEASE}"
    if not unpacked.exists():
        options = ("--no-deps", "--no-binary", PACKAGE, "--dest", str(folder))
        _run([sys.executable, "-m", "pip", "download", *options, f"{PACKAGE}=={RELEASE}"])
        with tarfile.open(unpacked.with_name(unpacked.name + ".tar.gz")) as archive:
            archive.extractall(folder, filter="data")
    return unpacked / "vendor" / "llama.cpp"


def _build(folder: Path, source: Path) -> None:
    if shutil.which("c++") is None:
        raise SystemExit("the peer needs a C++ compiler (c++) to be built; none was found")
    tools = folder / "tools"
    _run([sys.executable, "-m", "venv", str(tools)])
    _run([str(tools / "bin" / "pip"), "install", "--quiet", "cmake", "ninja"])
    path = f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"
    where = ("-S", str(source), "-B", str(folder / "build"), "-G", "Ninja")
    _run(["cmake", *where, *CMAKE_OPTIONS], path)
    _run(["ninja", "-C", str(folder / "build"), *PROGRAMS], path)


def _run(command: list[str], path: str | None = None) -> None:
    """Run politely (`nice`), its output on our standard error."""
    environment = os.environ | ({"PATH": path} if path else {})
    subprocess.run(["nice", "-n", "10", *command], check=True, env=environment, stdout=sys.stderr)


def measure(made: Path, model: Path, threads: int, repeat: int) -> dict[str, list[float]]:
    """Tokens a second of every test, `repeat` times each; a fresh process a test.

    llama-bench runs each test once before measuring, and its decode draws random tokens: no
    sampling is included.
    """
    return {name: _bench(made, model, threads, repeat, test) for name, test in TESTS.items()}


def _bench(
    made: Path, model: Path, threads: int, repeat: int, test: tuple[str, ...]
) -> list[float]:
    options = ["-m", str(model), "-t", str(threads), "-r", str(repeat), "-o", "json"]
    answer = subprocess.run(
        [str(made / "llama-bench"), *options, *test], check=True, capture_output=True, text=True
    )
    (entry,) = json.loads(answer.stdout)
    return [float(value) for value in entry["samples_ts"]]


def describe(made: Path, model: Path) -> str:
    """The build and the model type as llama-bench states them."""
    test = ("-p", "1", "-n", "0", "-r", "1", "--no-warmup", "-o", "json")
    command = [str(made / "llama-bench"), "-m", str(model), *test]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    (entry,) = json.loads(answer.stdout)
    return f"llama.cpp {entry['build_commit']} ({PACKAGE} {RELEASE}), {entry['model_type']}"
