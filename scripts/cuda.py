"""Run the tests that compile machine code for GPUs. Started by `scripts/test --cuda`.

NVIDIA's packages (the extra `cuda`, 96 MB to download) go to `.venv-cuda`, once. No GPU is needed.
Arguments go to pytest; without a file or folder among them, all tests of CUDA run.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contract import install, split

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venv-cuda"
TESTS = tuple(ROOT / "tests" / folder / "cuda" for folder in ("backends", "kernels"))


def requirements(project: str) -> list[str]:
    """Those of the extra `cuda` in the text of a pyproject.toml."""
    found = re.search(r"^cuda = \[(.*?)\]", project, re.MULTILINE)
    assert found, "pyproject.toml has no extra `cuda`"
    return re.findall(r'"(.*?)"', found[1])


def prepare(place: Path) -> str | None:
    """Install the packages there; the reason if that fails. Other runs wait meanwhile."""
    place.mkdir(exist_ok=True)
    wanted = place / "requirements.txt"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with (place / "lock").open("w", encoding="utf-8") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        lines = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wanted.write_text("\n".join(lines), encoding="utf-8")
        return install(place, wanted, [*pip, "--upgrade", "--target", ".", "-r", wanted.name])


def command(arguments: Sequence[str]) -> list[str]:
    """What runs the tests."""
    named, more = split(arguments)
    tests = named or [one for one in TESTS if one.exists()]
    return [sys.executable, "-m", "pytest", "--cuda", *map(str, tests), *more]


def main(arguments: Sequence[str]) -> int:
    """The exit status of pytest, or 1 if the packages cannot be installed."""
    if failed := prepare(PLACE):
        print(f"cuda: {failed}", file=sys.stderr)
        return 1
    paths = os.pathsep.join(filter(None, (str(PLACE), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command(arguments), cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
