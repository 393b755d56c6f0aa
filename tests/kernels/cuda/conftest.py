"""What calls kernels, started once: the emulator, or with `--gpu` the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "backends" / "cuda"))

from emulated import Emulator, MachineCode, emulator
from emulation import COMPILER
from fake_cuda import build_fake

from mlc_llm.backends.cuda import nvrtc, state
from mlc_llm.backends.cuda.driver import usable_gpu


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes in which the stand-in is CUDA."""
    if COMPILER is None:
        pytest.skip("needs g++, which compiles kernels for the CPU")
    return build_fake(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture(scope="session")
def emulate(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    """Calls kernels on arrays."""
    folder = tmp_path_factory.mktemp("emulated")
    if request.config.getoption("--gpu"):
        with emulator({}, folder, _code_of_gpu()) as started:
            yield started
    else:
        with emulator(request.getfixturevalue("fake"), folder) as started:
            yield started


def _code_of_gpu() -> MachineCode:
    if reason := state.why_not():
        pytest.skip(f"needs a GPU: {reason}")
    best = usable_gpu().architecture
    assert best is not None
    return MachineCode(best.name, partial(nvrtc.compile_cubin, arch=best.name))
