"""`scripts/cuda.py`: which packages it installs, and what it runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return runpy.run_path(str(ROOT / "scripts" / "cuda.py"))


def test_it_installs_the_extra(script: dict[str, Any]) -> None:
    from mlc_llm.backends.cuda.packages import PACKAGES

    lines = script["requirements"]((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {one.partition("==")[0] for one in lines} == set(PACKAGES)


def test_without_names_it_runs_all_tests_of_cuda(script: dict[str, Any]) -> None:
    pytest_itself = [sys.executable, "-m", "pytest", "--cuda"]
    every = [str(one) for one in script["TESTS"] if one.exists()]
    assert every
    assert script["command"](["-x"]) == [*pytest_itself, *every, "-x"]
    one = "tests/backends/cuda/test_device_bin.py"
    assert script["command"]([one, "-x"]) == [*pytest_itself, str(ROOT / one), "-x"]
