"""`scripts/setup` with a pretended Python: what it installs, when, and what it says if it cannot.

Also: CI runs the README's test command and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FAKE_PYTHON = """#!/bin/sh
echo "$*" >>"$FAKE_LOG"
case "$*" in
  --version) echo "Python 3.11.0" ;;
  "-c "*) exit ${FAKE_TOO_OLD:-0} ;;
  "-m venv"*) if [ -n "$FAKE_NO_VENV" ]; then echo "No module named venv"; exit 1; fi
    mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  "-m pip install"*) exit ${FAKE_NO_NETWORK:-0} ;;
esac
"""

TOOLS = ("bash", "sh", "cat", "cksum", "cp", "dirname", "mkdir", "rm")


class Clone:
    """A folder with the script, a `pyproject.toml` and a pretended `python3` on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        (self.folder / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup", self.folder / "scripts" / "setup")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        self.log = folder / "log"
        binaries = folder / "bin"
        binaries.mkdir()
        (binaries / "python3").write_text(FAKE_PYTHON)
        (binaries / "python3").chmod(0o755)
        for tool in TOOLS:  # and no other Python than the pretended one
            (binaries / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool} here"))
        self.path = str(binaries)

    def setup(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"{self.path}/bash", str(self.folder / "scripts" / "setup"), *args],
            env={"PATH": self.path, "FAKE_LOG": str(self.log), **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def installs(self) -> list[str]:
        """The pip installs so far."""
        lines = self.log.read_text().splitlines()
        return [line.split()[-1] for line in lines if line.startswith("-m pip install")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_installs_once_and_again_when_pyproject_changed(clone: Clone) -> None:
    assert clone.setup("test").returncode == 0
    assert clone.setup("test").returncode == 0
    assert clone.installs() == [".[test]"]
    (clone.folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert clone.setup("test").returncode == 0
    assert clone.installs() == [".[test]", ".[test]"]


def test_the_test_install_serves_the_demo_but_not_the_other_way_round(clone: Clone) -> None:
    clone.setup()
    clone.setup()
    assert clone.installs() == ["."]
    clone.setup("test")
    clone.setup()
    assert clone.installs() == [".", ".[test]"]


def test_a_failed_install_is_tried_again(clone: Clone) -> None:
    failed = clone.setup(FAKE_NO_NETWORK="1")
    assert failed.returncode == 1
    assert "the install failed" in failed.stderr
    assert clone.setup().returncode == 0
    assert clone.installs() == [".", "."]


def test_no_venv_module(clone: Clone) -> None:
    failed = clone.setup(FAKE_NO_VENV="1")
    assert failed.returncode == 1
    assert "apt install python3-venv" in failed.stderr
    assert not (clone.folder / ".venv").exists()


def test_python_too_old(clone: Clone) -> None:
    failed = clone.setup(FAKE_TOO_OLD="1")
    assert failed.returncode == 1
    assert "Python 3.10 or newer is needed" in failed.stderr


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-1].endswith("exec ./scripts/test")
    assert "./scripts/test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
