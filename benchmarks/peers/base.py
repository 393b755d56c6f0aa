"""The interface of all sides of the comparison, and how their processes are run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

WORKERS = Path(__file__).resolve().parent / "workers"
"""Scripts that run in the environments of the peers."""

LIMIT = 600.0
"""Seconds that one measurement may take."""


class Missing(Exception):
    """A side cannot be measured here, or not on this model. The text says why."""


@dataclass(frozen=True)
class Trial:
    """One speed of prompts (`tokens` is 0) or of decoding: tokens a second of all streams."""

    name: str
    depth: int
    """Tokens of the prompt of each stream."""
    tokens: int = 0
    """Tokens that each stream decodes after it. If not 0, the prompt's time is not counted."""
    streams: int = 1
    peers: bool = True
    """Whether peers run it too. If no figure needs it of them, it would only take time."""


class Session(Protocol):
    """One model, loaded by one side for a round."""

    def wait(self) -> None:
        """Wait until the model is loaded and the process is idle. Raises Missing."""

    def measure(self, test: Trial) -> float:
        """Tokens a second, after a warm-up. Raises Missing."""

    def close(self) -> None:
        """End its processes."""


class Side(Protocol):
    """An engine: ours or a peer."""

    name: str

    def install(self) -> str:
        """Install it. Returns a line with its version. Raises Missing."""

    def open(self, model: Path) -> Session:
        """Load a model. Raises Missing if it cannot be read."""

    def cold_start(self, model: Path) -> float:
        """Seconds of a whole fresh process to its first token. Raises Missing."""

    def logits(self, model: Path, pieces: Path, target: Path) -> None:
        """Write the logits [pieces, tokens, V] of a file of ids [pieces, tokens], both as NumPy has
        them. Each piece is a sequence of its own. Raises Missing."""


def run(
    command: Sequence[object],
    *,
    path: str | None = None,
    limit: float | None = None,
    both: bool = False,
) -> str:
    """The standard output of a program. Raises Missing with the end of its errors if it fails.

    limit: seconds after which it counts as failed. both: with its standard error.
    """
    environment = os.environ | ({"PATH": path} if path else {})
    text = [str(part) for part in command]
    try:
        done = subprocess.run(
            text, capture_output=True, text=True, env=environment, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(text[0]).name} took more than {limit:g} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-3:]
        raise Missing(f"{Path(text[0]).name} failed ({done.returncode}): {' | '.join(last)[:300]}")
    return done.stdout + (done.stderr if both else "")


def timed(command: Sequence[str | Path]) -> float:
    """Seconds that a program takes from start to end."""
    start = time.perf_counter()
    run(command, limit=LIMIT)
    return time.perf_counter() - start


def python_environment(folder: Path, *requirements: str) -> Path:
    """The Python of a virtual environment with these packages. It is made if it is missing, and
    completed if it was made for other packages."""
    python = folder / "bin" / "python"
    done, wanted = folder / "installed", "\n".join(requirements)
    if not done.exists() or done.read_text() != wanted:
        run([sys.executable, "-m", "venv", folder])
        for requirement in requirements:
            run(["nice", "-n", "10", python, "-m", "pip", "install", "--quiet", requirement])
        done.write_text(wanted)
    return python


def source_archive(folder: Path, package: str, release: str) -> Path:
    """The unpacked source archive of a package. It is downloaded if it is missing."""
    unpacked = folder / f"{package.replace('-', '_')}-{release}"
    if not unpacked.exists():
        python = python_environment(folder / "tools", "cmake", "ninja", "scikit-build-core")
        options = ("--no-deps", "--no-build-isolation", "--no-binary", package, "--dest", folder)
        run([python, "-m", "pip", "download", *options, f"{package}=={release}"])
        with tarfile.open(unpacked.with_name(unpacked.name + ".tar.gz")) as archive:
            archive.extractall(folder, filter="data")
    return unpacked


def cmake_build(
    folder: Path, source: Path, options: Sequence[str], programs: Sequence[str]
) -> Path:
    """The folder of the built programs. If one is missing, they are built with one process at low
    priority."""
    made = folder / "bin"
    if all((made / program).exists() for program in programs):
        return made
    if shutil.which("c++") is None:
        raise Missing("it has to be built, and there is no C++ compiler (c++)")
    tools = python_environment(folder.parent / "tools", "cmake", "ninja", "scikit-build-core")
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
    configure = ["cmake", "-G", "Ninja", "-S", source, "-B", folder, *options]
    run(configure, path=path)
    run(["nice", "-n", "10", "ninja", "-j1", "-C", folder, *programs], path=path)
    return made


class LineWorker:
    """A process that answers each line of JSON with a line: {"value": ...} or {"error": text}."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str]) -> None:
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, request: Mapping[str, object]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Missing(self._ending()) from None
        watchdog = threading.Timer(LIMIT, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                answer = _answer(line)
                if answer is not None:
                    return _value(answer)
        finally:
            watchdog.cancel()
        raise Missing(self._ending())

    def _ending(self) -> str:
        """Why there is no answer."""
        code = self._process.wait()
        self._complaints.seek(0)
        last = self._complaints.read().strip().splitlines()[-1:]
        return f"its process ended with {code}: {' '.join(last)[:300]}"

    def wait(self) -> None:
        self.ask({"do": "about"})

    def measure(self, test: Trial) -> float:
        asked = asdict(test)
        del asked["peers"]  # only the comparison needs it, not the worker
        return float(self.ask({"do": "measure", **asked}))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._complaints.close()


def _answer(line: str) -> dict[str, Any] | None:
    """An answer; None for other lines, which libraries print."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() & {"value", "error"} else None


def _value(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise Missing(answer["error"])
    return answer["value"]
