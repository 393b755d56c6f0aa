"""The emulator of kernels, started once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "backends" / "cuda"))

from emulated import Emulator, emulator
from emulation import COMPILER
from fake_cuda import build_fake


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes in which the stand-in is CUDA."""
    if COMPILER is None:
        pytest.skip("needs g++, which compiles kernels for the CPU")
    return build_fake(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture(scope="session")
def emulate(fake: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Calls kernels on arrays."""
    with emulator(fake, tmp_path_factory.mktemp("emulated")) as started:
        yield started
