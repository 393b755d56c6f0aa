"""The stand-in for CUDA, and a library for it, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cuda import COMPILER, build_fake, fake_machine_code


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes in which the stand-in is CUDA; see `fake_cuda.py`."""
    if COMPILER is None:
        pytest.skip("needs gcc, which builds the stand-in for CUDA")
    return build_fake(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture(scope="session")
def doubler_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of `Doubler` for sm_90a. Its machine code is good for the stand-in only."""
    from cuda_kernels import doubler_module

    from mlc_llm.backends.cuda.codegen import compile_module

    folder = tmp_path_factory.mktemp("doubler")
    made = compile_module(doubler_module(), "sm_90a", folder, lambda text: fake_machine_code())
    assert made.files == ("vm.bin", "kernels.o", "device.bin")
    assert made.requires == ("sm_90a",)
    return folder
